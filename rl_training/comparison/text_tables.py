"""A comparison as text: tables for the terminal, and the verdicts in words."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.comparison.groups import format_value
from rl_training.comparison.verdicts import format_estimate, format_number
from rl_training.errors import printable

if TYPE_CHECKING:
    from rl_training.comparison.comparison import Comparison
    from rl_training.comparison.curves import TimeToThreshold
    from rl_training.comparison.group_statistics import GroupStatistics

MOST_SETTINGS = 20
"""The most differing settings that the text lists; the page and the JSON have all."""

GAP = 2
"""The number of spaces between two columns."""

MOST_LEFT_OUT = 5
"""The most runs whose reason for being left out the text gives."""


def format_comparison(comparison: Comparison, width: int | None = None) -> list[str]:
    """Returns a comparison as lines of text of `width` columns, by default those of the terminal."""
    width = width or Console().width
    lines = [describe_comparison(comparison), "", *_draw_groups(*make_table(comparison), width)]
    if comparison.verdicts:
        lines += ["", *(verdict.text for verdict in comparison.verdicts)]
    headings, rows = make_settings_table(comparison)
    if rows:
        more = len(rows) - MOST_SETTINGS
        lines += ["", *_draw(headings, rows[:MOST_SETTINGS], width)]
        lines += [f"and {more} more settings that differ"] if more > 0 else []
    lines += ["", *describe_left_out(comparison)] if comparison.left_out else []
    lines += [f"note: {note}" for note in comparison.notes]
    return [printable(line).rstrip() for line in lines]


def describe_comparison(comparison: Comparison) -> str:
    """Returns what was compared, as one line."""
    threshold = ""
    if comparison.threshold is not None:
        source = "" if comparison.threshold_from == "given" else f" ({comparison.threshold_from})"
        threshold = f", threshold {comparison.threshold:g}{source}"
    return (
        f"{comparison.env_id}, {comparison.metric} after {comparison.total_timesteps:,} steps, "
        f"{100 * comparison.confidence:g} % intervals{threshold}"
    )


def describe_left_out(comparison: Comparison) -> list[str]:
    """Returns a line for each of the first runs that are left out, and one for the others."""
    lines = [f"left out: {each.run}, because it {each.reason}" for each in comparison.left_out[:MOST_LEFT_OUT]]
    more = len(comparison.left_out) - MOST_LEFT_OUT
    return lines + ([f"left out: {more} more runs"] if more > 0 else [])


def make_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and the rows of the table of groups."""
    headings = ["group", "settings", "seeds", "IQM", "mean", "median"]
    with_threshold = comparison.threshold is not None
    if with_threshold:
        headings += ["gap", "steps to threshold"]
    return [*headings, "steps/s"], [_make_row(each, with_threshold) for each in comparison.groups]


def make_settings_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and the rows of the table of settings that differ, a row each."""
    groups = [each.group for each in comparison.groups]
    keys = dict.fromkeys(key for group in groups for key in group.differing)
    rows = [
        [key, *(format_value(group.differing[key]) if key in group.differing else "-" for group in groups)]
        for key in keys
    ]
    return ["setting", *(group.name for group in groups)], rows


def _make_row(each: GroupStatistics, with_threshold: bool) -> list[str]:
    row = [each.group.name, each.group.label or "-", str(len(each.scores))]
    row += [format_estimate(value) for value in (each.iqm, each.mean, each.median)]
    if with_threshold:
        row.append("-" if each.optimality_gap is None else format_estimate(each.optimality_gap))
        row.append("-" if each.time_to_threshold is None else format_time(each.time_to_threshold))
    return [*row, "-" if each.steps_per_second is None else format_number(each.steps_per_second)]


def format_time(times: TimeToThreshold) -> str:
    """Returns when the runs of a group reach the threshold: `12,000 [8,000, 20,000], 5 of 5`."""
    reached = f"{times.reached} of {times.runs}"
    if times.median is None:
        return f"never, {reached}" if times.reached == 0 else f"beyond the budget, {reached}"
    if times.low is None:
        return f"{times.median:,}, {reached}"
    high = "beyond" if times.high is None else f"{times.high:,}"
    return f"{times.median:,} [{times.low:,}, {high}], {reached}"


def _draw_groups(headings: list[str], rows: list[list[str]], width: int) -> list[str]:
    """Returns the lines of the table of groups.

    A few groups are easier to compare in a column each; their settings are wrapped between words if that helps.
    """
    turned = list(zip(headings, *rows, strict=True))
    columns = list(zip(*turned, strict=True))
    whole = [max(map(len, column)) for column in columns]
    settings = headings.index("settings")
    wrapped = [max(len(word) for heading in headings for word in heading.split())]
    for column in columns[1:]:
        words = column[settings].split()
        wrapped.append(max(len(text) for text in (*column[:settings], *words, *column[settings + 1 :])))
    for widths in (whole, wrapped):
        if sum(widths) + GAP * len(widths) <= width:
            return _draw(turned[0], turned[1:], width, widths)
    return _draw(headings, rows, width)


def _draw(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, widths: Sequence[int | None] | None = None
) -> list[str]:
    """Returns the lines of a table; cells that do not fit `width`, or their column's of `widths`, are broken."""
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, GAP, 0, 0))
    for heading, most in zip(headings, widths or [None] * len(headings), strict=True):
        table.add_column(Text(heading), overflow="fold", max_width=most)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue().splitlines()
