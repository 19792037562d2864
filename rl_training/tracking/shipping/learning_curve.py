"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROLLOUT, EVALUATION = "rollout/episode_return_mean", "eval/return_mean"
LOW, HIGH = "eval/ci_low", "eval/ci_high"


class LearningCurve:
    """Collects the points of a run's returns."""

    def __init__(self) -> None:
        self.changed = False
        """Whether there are points that the last picture does not show."""
        self._rollout: list[tuple[int, float]] = []
        self._evaluations: list[tuple[int, float, float, float]] = []

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes one line of the metrics file in."""
        if ROLLOUT in metrics:
            self._rollout.append((step, metrics[ROLLOUT]))
        if EVALUATION in metrics:
            mean = metrics[EVALUATION]
            self._evaluations.append((step, mean, metrics.get(LOW, mean), metrics.get(HIGH, mean)))
        self.changed = self.changed or ROLLOUT in metrics or EVALUATION in metrics

    def figure(self, title: str) -> Figure:
        """Returns the picture of all points so far."""
        from matplotlib.figure import Figure  # without pyplot: no window system and no global state are touched

        self.changed = False

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes: Any = figure.add_subplot()
        if self._rollout:
            steps, means = zip(*self._rollout, strict=True)
            axes.plot(steps, means, color="tab:gray", linewidth=1, label="training episodes (mean of the last 100)")
        if self._evaluations:
            steps, means, lows, highs = zip(*sorted(self._evaluations), strict=True)
            axes.fill_between(steps, lows, highs, color="tab:blue", alpha=0.2, linewidth=0, label="95 % interval")
            axes.plot(steps, means, color="tab:blue", marker="o", markersize=3, label="evaluation (mean)")
        axes.set(title=title, xlabel="environment steps", ylabel="episode return")
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
        return figure
