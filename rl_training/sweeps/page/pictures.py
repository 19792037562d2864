"""Draws the pictures of a sweep: its history, its settings side by side, and their importance."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from rl_training.security.secrets import redact
from rl_training.sweeps.space import Choices, Dimension
from rl_training.sweeps.sweep_config import Direction
from rl_training.sweeps.trials import Trial, track_best

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS: Mapping[str, dict[str, Any]] = {
    "complete": {"marker": "o", "color": "tab:blue"},
    "paused": {"marker": "o", "color": "tab:gray", "facecolors": "none"},
    "pruned": {"marker": "x", "color": "tab:orange"},
}
"""How the history shows the states of trials that have a score."""

LABEL_CHARACTERS = 18
"""Longest label of a choice; longer ones are cut."""

MOST_TICKS = 12
"""Most choices of a setting that have labels."""


def draw_history(trials: Sequence[Trial], metric: str, direction: Direction) -> Figure:
    """Returns the score of each trial by its number, and the best score so far.

    Failed trials, which have no score, are marked at the lower edge.
    """
    figure, axes = _make_figure(6.4, 3.6)
    for state, style in MARKERS.items():
        points = [(trial.number, trial.score) for trial in trials if trial.state == state]
        if points:
            axes.scatter(*zip(*points, strict=True), s=22, label=state, **style)
    if failed := [trial.number for trial in trials if trial.state == "failed"]:
        edge = axes.get_xaxis_transform()  # y as a share of the height
        axes.scatter(failed, [0.02] * len(failed), s=22, marker="v", color="tab:red", label="failed", transform=edge)
    best = [(number, score) for number, score in track_best(trials, direction) if score is not None]
    if best:
        axes.step(*zip(*best, strict=True), where="post", color="black", linewidth=1, label="best complete so far")
    axes.set(title="History", xlabel="trial", ylabel=metric)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if trials:
        axes.legend(loc="best", fontsize="small")
    return figure


def draw_parallel_coordinates(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], metric: str, direction: Direction
) -> Figure:
    """Returns a line for each trial that has a score, through an axis for each setting and one for the score.

    An axis is logarithmic if the setting's range is. A line has a gap at a setting that is not set in its trial. The
    best lines are the brightest, and on top of the others.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    scored = [(trial, trial.score) for trial in trials if trial.score is not None]
    scores = [score for _, score in scored]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    figure, host = _make_figure(max(6.4, 1.3 * (len(dimensions) + 2)), 4.2)
    colours, norm = colormaps["viridis" if direction == "maximize" else "viridis_r"], Normalize(low, high)
    for trial, score in sorted(scored, key=lambda pair: pair[1], reverse=direction == "minimize"):
        heights = [_find_height(dimension, trial.params) for dimension in dimensions]
        heights.append((score - low) / (high - low) if high > low else 0.5)
        host.plot(range(len(heights)), heights, color=colours(norm(score)), linewidth=1.2, marker=".", alpha=0.8)
    host.set(xlim=(0, len(dimensions)), ylim=(0, 1), yticks=[], title="Settings and scores of the trials")
    host.set_xticks(range(len(dimensions) + 1), [*(_label_key(one.key) for one in dimensions), metric])
    host.tick_params(axis="x", labelsize="small", length=0)
    host.spines[:].set_visible(False)
    for i, dimension in enumerate(dimensions):
        _set_scale(_add_axis(host, i), dimension)
    _add_axis(host, len(dimensions)).set_ylim((low, high) if high > low else (low - 0.5, low + 0.5))
    for label in (label for axis in figure.axes[1:] for label in axis.get_yticklabels()):
        label.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5})
    return figure


def draw_importance(shares: Mapping[str, float]) -> Figure:
    """Returns a bar for the share of each setting, the largest on top."""
    figure, axes = _make_figure(6.4, 1.2 + 0.3 * len(shares))
    axes.barh(list(shares), list(shares.values()), color="tab:blue")
    axes.invert_yaxis()
    axes.set(title="Importance of the settings", xlabel="share", xlim=(0, 1))
    axes.grid(alpha=0.3, axis="x")
    return figure


def save_png(figure: Figure) -> bytes:
    """Returns the picture as a PNG of some tens of kB."""
    png = BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()


def _make_figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # not pyplot, which would need a window system and keep global state

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _add_axis(host: Any, position: int) -> Any:
    """Returns a vertical axis with a scale of its own."""
    axis = host.twinx()
    axis.spines[["top", "bottom", "left"]].set_visible(False)
    axis.spines["right"].set_position(("data", position))
    axis.tick_params(axis="y", labelsize="x-small")
    axis.set_zorder(host.get_zorder() + 1)
    return axis


def _find_height(dimension: Dimension, params: Mapping[str, Any]) -> float:
    """Returns the place of a trial on a setting's axis, from 0 to 1; NaN if the setting is not set."""
    if dimension.key not in params:
        return math.nan
    value, values = params[dimension.key], dimension.values
    if isinstance(values, Choices):
        last = len(values.values) - 1
        return values.find(value) / last if last else 0.5
    if values.low == values.high:
        return 0.5
    scale: Callable[[float], float] = math.log if values.log else float
    return (scale(value) - scale(values.low)) / (scale(values.high) - scale(values.low))


def _set_scale(axis: Any, dimension: Dimension) -> None:
    values = dimension.values
    if isinstance(values, Choices):
        last = len(values.values) - 1
        labels = [_cut(one if isinstance(one, str) else json.dumps(one, default=str)) for one in redact(values.values)]
        axis.set_ylim((0, last) if last else (-0.5, 0.5))
        shown = range(0, last + 1, 1 + last // MOST_TICKS)
        axis.set_yticks(list(shown), [labels[i] for i in shown])
        return
    if values.low < values.high:
        axis.set_yscale("log" if values.log else "linear")
        axis.set_ylim(values.low, values.high)
    else:
        axis.set_ylim(values.low - 0.5, values.low + 0.5)


def _label_key(key: str) -> str:
    return key.replace(".", ".\n")


def _cut(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"
