"""Draws the pictures on a run's page in MLflow; the shipper draws them, so that training is not slowed down."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.tracking import json_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

CURVE = "learning_curve.png"
HISTOGRAM = "evaluation_histogram.png"

CURVE_SECONDS = 60.0
"""Shortest interval between two drawings of the learning curve during training."""

BINS = 20

ROLLOUT, EVALUATION = "rollout/episode_return_mean", "eval/return_mean"
ROLLOUT_SUCCESS, EVALUATION_SUCCESS = "rollout/success_rate", "eval/success_rate"
LOW, HIGH = "eval/ci_low", "eval/ci_high"


class LearningCurve:
    """Collects the returns of a run and plots them."""

    def __init__(self) -> None:
        self.changed = False
        """Whether points were added since the last plot."""
        self._rollout: list[tuple[int, float]] = []
        self._evaluations: list[tuple[int, float, float, float]] = []
        self._successes: dict[str, list[tuple[int, float]]] = {ROLLOUT_SUCCESS: [], EVALUATION_SUCCESS: []}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one line of the metrics file."""
        if ROLLOUT in metrics:
            self._rollout.append((step, metrics[ROLLOUT]))
        if EVALUATION in metrics:
            mean = metrics[EVALUATION]
            self._evaluations.append((step, mean, metrics.get(LOW, mean), metrics.get(HIGH, mean)))
        for name, points in self._successes.items():
            if name in metrics:
                points.append((step, metrics[name]))
        self.changed = self.changed or ROLLOUT in metrics or EVALUATION in metrics

    def draw(self, title: str) -> Figure:
        """Returns a plot of all points so far."""
        from matplotlib.figure import Figure  # not pyplot, which would need a window system and keep global state

        self.changed = False
        successes = {name: sorted(points) for name, points in self._successes.items() if points}
        figure = Figure(figsize=(6.4, 5.4 if successes else 3.6), layout="constrained")
        axes: Any = figure.add_subplot(*((3, 1, (1, 2)) if successes else ()))
        if successes:
            self._draw_successes(figure.add_subplot(3, 1, 3), successes)
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

    def _draw_successes(self, axes: Any, successes: Mapping[str, list[tuple[int, float]]]) -> None:
        style = {
            ROLLOUT_SUCCESS: {"color": "tab:gray", "linewidth": 1, "label": "training episodes"},
            EVALUATION_SUCCESS: {"color": "tab:green", "marker": "o", "markersize": 3, "label": "evaluation"},
        }
        for name, points in successes.items():
            axes.plot(*zip(*points, strict=True), **style[name])
        axes.set(xlabel="environment steps", ylabel="success rate", ylim=(-0.05, 1.05))
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")


class Figures:
    """Draws the pictures that have changed into the run's artifacts folder."""

    def __init__(self, run_dir: Path, title: str) -> None:
        self.curve = LearningCurve()
        self._artifacts, self._title = run_dir / run_layout.ARTIFACTS, title
        self._curve_drawn = -CURVE_SECONDS
        self._evaluation_drawn = 0

    def draw(self, *, now: bool) -> None:
        """Draws the pictures that are due; a failure is logged.

        Args:
            now: Whether to draw a changed learning curve even if the last drawing is recent.
        """
        try:
            if self.curve.changed and (now or time.monotonic() - self._curve_drawn >= CURVE_SECONDS):
                self._curve_drawn = time.monotonic()
                self._save(self.curve.draw(self._title), CURVE)
            self._draw_evaluation()
        except Exception as error:  # a full disk, for example; checkpoints and metrics matter more
            logger.warning("a picture could not be drawn: %s", error)

    def _draw_evaluation(self) -> None:
        path = self._artifacts / run_layout.HELD_OUT
        written = path.stat().st_mtime_ns if path.exists() else 0
        if written == self._evaluation_drawn:
            return
        self._evaluation_drawn = written
        evaluation = json_files.read_json(path)
        if evaluation is not None:
            self._save(draw_evaluation_histogram(evaluation, self._title), HISTOGRAM)

    def _save(self, figure: Figure, name: str) -> None:
        """Writes a PNG of about 30 kB."""
        png = BytesIO()
        figure.savefig(png, format="png", dpi=100)
        json_files.write_bytes(self._artifacts / name, png.getvalue(), sync=False)


def draw_evaluation_histogram(evaluation: Mapping[str, Any], title: str) -> Figure:
    """Returns a histogram of the returns in `evaluation.json`, with their mean and its 95 % interval."""
    from matplotlib.figure import Figure  # not pyplot, which would need a window system and keep global state

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes: Any = figure.add_subplot()
    returns, mean, low = evaluation["returns"], evaluation["return_mean"], evaluation["ci_low"]
    bins = BINS if min(returns) < max(returns) else 1
    axes.hist(returns, bins=bins, color="tab:blue", alpha=0.6, label=f"{len(returns)} episodes")
    axes.margins(x=0.05 if bins == BINS else 2.0)
    axes.axvline(mean, color="black", label=f"mean {mean:.1f}")
    if low is not None:
        axes.axvspan(low, evaluation["ci_high"], color="black", alpha=0.15, label="95 % interval of the mean")
    axes.set(title=f"{title}: held-out episodes", xlabel="episode return", ylabel="episodes")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    return figure
