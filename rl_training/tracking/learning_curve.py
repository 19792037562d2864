"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROLLOUT, EVALUATION = "rollout/episode_return_mean", "eval/return_mean"
LOW, HIGH = "eval/ci_low", "eval/ci_high"


class LearningCurve:
    """Collects the points of a run's returns and draws them."""

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

    def draw(self, path: Path, title: str) -> None:
        """Writes the picture, a PNG of about 50 kB, beside `path` and renames it."""
        self.changed = False
        # Figure alone, without pyplot: no window system and no global state are touched.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        figure.savefig(beside, format="png", dpi=110)
        beside.replace(path)
