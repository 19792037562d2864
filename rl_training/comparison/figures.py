"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.comparison.group_statistics import find_curve
from rl_training.pages.svg_pictures import COLORS, DASHES, INK, draw_svg

if TYPE_CHECKING:
    from rl_training.comparison.comparison import Comparison

_WIDTH, _HEIGHT, _ROW = 6.4, 3.6, 0.45
"""Inches: the size of a picture, and the height of a row of one that has a row for each group."""


def draw_pictures(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yields the title of each picture, its caption, and the picture as an SVG element."""
    percent = f"{100 * comparison.confidence:g} %"
    yield _draw(
        comparison,
        _draw_scores,
        "Scores",
        f"Each dot is a run; the bar is the {percent} interval of the interquartile mean, which the line marks.",
    )
    if comparison.verdicts:
        yield _draw(
            comparison,
            _draw_improvements,
            "Probability of improvement",
            f"How likely a run of the group scores above a run of {comparison.groups[0].group.name}, with the "
            f"{percent} interval; at one half neither is better.",
        )
    yield _draw(
        comparison,
        _draw_profiles,
        "Performance profile",
        f"The share of runs that score above each value, with the {percent} interval at each; higher is better.",
    )
    if any(each.sample_efficiency for each in comparison.groups):
        yield _draw(
            comparison,
            _draw_efficiency,
            "Sample efficiency",
            f"The interquartile mean of the periodic evaluations, with the {percent} interval at each step.",
        )


def _draw(
    comparison: Comparison, draw: Callable[[Comparison, Any], None], title: str, caption: str
) -> tuple[str, str, str]:
    rows = {_draw_scores: len(comparison.groups), _draw_improvements: len(comparison.verdicts)}
    height = 1.2 + _ROW * rows[draw] if draw in rows else _HEIGHT
    svg = draw_svg(title, (_WIDTH, height), lambda figure: draw(comparison, figure.add_subplot()))
    return title, caption, svg


def _style(i: int) -> dict[str, str]:
    return {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i // len(COLORS) % len(DASHES)]}


def _draw_scores(comparison: Comparison, axes: Any) -> None:
    for i, each in enumerate(comparison.groups):
        color = _style(i)["color"]
        if each.iqm.low is not None and each.iqm.high is not None:
            axes.barh(i, each.iqm.high - each.iqm.low, 0.5, each.iqm.low, color=color, alpha=0.3)
        axes.plot([each.iqm.value] * 2, [i - 0.25, i + 0.25], color=color, linewidth=2.5)
        axes.plot(each.scores[:, 0], np.full(len(each.scores), i), "o", color=color, markersize=4, alpha=0.7)
    if comparison.threshold is not None:
        axes.axvline(comparison.threshold, color=INK, linestyle=":", linewidth=1)
    axes.use_sticky_edges = False  # which would leave no room beside the bars
    _label_rows(axes, [each.group.name for each in comparison.groups])
    axes.set_xlabel(comparison.metric)


def _draw_improvements(comparison: Comparison, axes: Any) -> None:
    for i, verdict in enumerate(comparison.verdicts):
        color, found = _style(i + 1)["color"], verdict.improvement
        if found.low is not None and found.high is not None:
            axes.barh(i, found.high - found.low, 0.5, found.low, color=color, alpha=0.3)
        axes.plot([found.value] * 2, [i - 0.25, i + 0.25], color=color, linewidth=2.5)
    axes.axvline(0.5, color=INK, linestyle=":", linewidth=1)
    reference = comparison.groups[0].group.name
    _label_rows(axes, [f"{verdict.group} > {reference}" for verdict in comparison.verdicts])
    axes.set(xlim=(-0.02, 1.02), xlabel="probability of improvement")


def _draw_profiles(comparison: Comparison, axes: Any) -> None:
    for i, each in enumerate(comparison.groups):
        if each.profile.low is not None:
            axes.fill_between(
                comparison.profile_at,
                each.profile.low,
                each.profile.high,
                step="post",
                color=_style(i)["color"],
                alpha=0.15,
                linewidth=0,
            )
        axes.step(comparison.profile_at, each.profile.values, where="post", label=each.group.name, **_style(i))
    axes.set(ylim=(-0.03, 1.03), ylabel="share of runs above")
    axes.set_xlabel(comparison.metric)
    axes.legend(loc="best", fontsize="small")


def _draw_efficiency(comparison: Comparison, axes: Any) -> None:
    for i, each in enumerate(comparison.groups):
        if (curve := each.sample_efficiency) is None:
            continue
        if curve.band.low is not None:
            color = _style(i)["color"]
            axes.fill_between(curve.steps, curve.band.low, curve.band.high, color=color, alpha=0.15, linewidth=0)
        axes.plot(curve.steps, curve.band.values, marker=".", markersize=4, label=each.group.name, **_style(i))
    if comparison.threshold is not None:
        axes.axhline(comparison.threshold, color=INK, linestyle=":", linewidth=1)
    axes.set_ylabel(find_curve(comparison.metric))
    axes.set_xlabel("environment steps")
    axes.legend(loc="best", fontsize="small")


def _label_rows(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first group at the top
    axes.grid(visible=False, axis="y")
