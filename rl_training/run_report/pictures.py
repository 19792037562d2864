"""The pictures of a report: learning curves, and the returns of the held-out episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rl_training.pages.svg_pictures import COLORS, INK, draw_svg
from rl_training.runs.health_warnings import KINDS
from rl_training.runtime.health.watch import METRIC
from rl_training.tracking.shipping.figures import EVALUATION, ROLLOUT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rl_training.comparison.recorded_run import Points
    from rl_training.runs.evaluation_result import EvaluationResult

DEVIATION = "eval/return_std"
SUCCESS = ("rollout/success_rate", "eval/success_rate")
MOST_UPDATES = 12
"""The most metrics of updates that are drawn."""
_COLUMNS = 3
_SIZE = (6.4, 3.6)


def draw_pictures(points: Points, evaluation: EvaluationResult | None) -> Iterator[tuple[str, str, str]]:
    """Yields the title of each picture, its caption, and the picture as an SVG element.

    Args:
        points: The values of the run's metrics, by name and step.
        evaluation: The held-out evaluation.
    """
    if ROLLOUT in points or EVALUATION in points:
        caption = "Training episodes, and the periodic evaluations of the greedy policy with their standard deviation."
        warned = [step for kind in KINDS for step, value in points.get(METRIC + kind, {}).items() if value]
        if warned:
            caption += " Dotted lines: a warning about training."
        yield "Return", caption, draw_svg("Return", _SIZE, lambda figure: _draw_returns(figure, points, warned))
    if any(name in points for name in SUCCESS):
        caption = "The share of episodes that succeed, in training and in periodic evaluations."
        yield "Success rate", caption, draw_svg("Success rate", _SIZE, lambda figure: _draw_success(figure, points))
    if evaluation is not None and evaluation.episodes > 1:
        caption = (
            f"{evaluation.episodes} held-out episodes of the policy that is reported above; the line is their mean."
        )
        yield (
            "Held-out returns",
            caption,
            draw_svg("Held-out returns", _SIZE, lambda figure: _draw_histogram(figure, evaluation)),
        )
    updates = [name for name in sorted(points) if name.startswith("train/") and len(points[name]) > 1][:MOST_UPDATES]
    if updates:
        height = 0.4 + 1.5 * math.ceil(len(updates) / _COLUMNS)
        caption = "What the updates measured, over environment steps."
        yield "Updates", caption, draw_svg("Updates", (6.4, height), lambda figure: _draw_grid(figure, points, updates))


def _draw_returns(figure: Figure, points: Points, warned: list[int]) -> None:
    axes = figure.add_subplot()
    for step in warned:
        axes.axvline(step, color=INK, linestyle=":", linewidth=1)
    if ROLLOUT in points:
        _plot(axes, points[ROLLOUT], COLORS[0], "training", linewidth=1)
    if (evaluated := points.get(EVALUATION)) is not None:
        steps, means = _split(evaluated)
        deviations = [points.get(DEVIATION, {}).get(step, 0.0) for step in steps]
        low, high = ([mean + sign * d for mean, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=COLORS[1], alpha=0.15, linewidth=0)
        _plot(axes, evaluated, COLORS[1], "evaluation", marker=".", markersize=5)
    axes.set(xlabel="environment steps", ylabel="return of an episode")
    axes.legend(loc="best", fontsize="small")


def _draw_success(figure: Figure, points: Points) -> None:
    axes = figure.add_subplot()
    for color, label, name in zip(COLORS, ("training", "evaluation"), SUCCESS, strict=False):
        if name in points:
            _plot(axes, points[name], color, label, marker=".", markersize=4)
    axes.set(xlabel="environment steps", ylabel="success rate", ylim=(-0.03, 1.03))
    axes.legend(loc="best", fontsize="small")


def _draw_histogram(figure: Figure, evaluation: EvaluationResult) -> None:
    axes = figure.add_subplot()
    axes.hist(evaluation.returns, bins=min(30, max(5, evaluation.episodes // 4)), color=COLORS[0], alpha=0.7)
    axes.axvline(evaluation.return_mean, color=INK, linewidth=1.5)
    axes.set(xlabel="return of an episode", ylabel="episodes")


def _draw_grid(figure: Figure, points: Points, names: list[str]) -> None:
    rows = math.ceil(len(names) / _COLUMNS)
    for i, name in enumerate(names):
        axes = figure.add_subplot(rows, _COLUMNS, i + 1)
        _plot(axes, points[name], COLORS[0], None, linewidth=1)
        axes.set_title(name.removeprefix("train/"), fontsize=8)
        axes.tick_params(labelsize=6)


def _plot(axes: Any, values: Mapping[int, float], color: str, label: str | None, **style: Any) -> None:
    axes.plot(*_split(values), color=color, label=label, **style)


def _split(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(values)
    return steps, [values[step] for step in steps]
