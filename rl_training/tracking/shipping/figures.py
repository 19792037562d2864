"""Pictures of a run, which its page in MLflow shows: drawn by the process that sends them, never by training."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.shipping.learning_curve import LearningCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

CURVE = "learning_curve.png"
HISTOGRAM = "evaluation_histogram.png"

CURVE_SECONDS = 60.0
"""The learning curve is drawn at most this often while training goes on."""

BINS = 20


class Figures:
    """Draws what has changed, into the run's artifacts.

    Args:
        run_dir: The run's directory.
        title: The run's name.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self.curve = LearningCurve()
        self._artifacts, self._title = run_dir / run_layout.ARTIFACTS, title
        self._curve_drawn = -CURVE_SECONDS
        self._evaluation_drawn = 0

    def draw(self, *, now: bool) -> None:
        """Draws what is due; what can't be drawn is said and left out.

        Args:
            now: Whether the learning curve is due whenever it has changed.
        """
        try:
            if self.curve.changed and (now or time.monotonic() - self._curve_drawn >= CURVE_SECONDS):
                self._curve_drawn = time.monotonic()
                self._save(self.curve.figure(self._title), CURVE)
            self._draw_evaluation()
        except Exception as error:  # a full disk, say: checkpoints and metrics are worth more
            logger.warning("a picture could not be drawn: %s", error)

    def _draw_evaluation(self) -> None:
        path = self._artifacts / run_layout.HELD_OUT
        written = path.stat().st_mtime_ns if path.exists() else 0
        if written == self._evaluation_drawn:
            return
        self._evaluation_drawn = written
        evaluation = json_files.read_json(path)
        if evaluation is not None:
            self._save(evaluation_histogram(evaluation, self._title), HISTOGRAM)

    def _save(self, figure: Figure, name: str) -> None:
        """Writes a PNG of about 30 kB."""
        png = BytesIO()
        figure.savefig(png, format="png", dpi=100)
        json_files.write_bytes(self._artifacts / name, png.getvalue(), sync=False)


def evaluation_histogram(evaluation: Mapping[str, Any], title: str) -> Figure:
    """Returns the returns of the held-out episodes as a histogram, with their mean and its interval.

    Args:
        evaluation: The content of `evaluation.json`.
        title: The run's name.
    """
    from matplotlib.figure import Figure  # without pyplot: no window system and no global state are touched

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
