"""The page of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.comparison.figures import draw_pictures
from rl_training.comparison.text_tables import describe_comparison, make_settings_table, make_table
from rl_training.comparison.verdicts import format_number
from rl_training.errors import printable
from rl_training.pages.html_page import render_page
from rl_training.pages.page_file import COMPARISON

if TYPE_CHECKING:
    from rl_training.comparison.comparison import Comparison

TEMPLATE = Path(__file__).with_name("page.html")


def make_page(comparison: Comparison) -> str:
    """Returns the page of a comparison."""
    headings, rows = make_table(comparison)
    setting_headings, setting_rows = make_settings_table(comparison)
    return render_page(
        TEMPLATE,
        f"Comparison: {printable(comparison.env_id)}",
        COMPARISON,
        task=printable(describe_comparison(comparison)),
        verdicts=[(verdict.finding, printable(verdict.text)) for verdict in comparison.verdicts],
        headings=headings,
        rows=[[printable(cell) for cell in row] for row in rows],
        pictures=list(draw_pictures(comparison)),
        setting_headings=setting_headings,
        setting_rows=[[printable(cell) for cell in row] for row in setting_rows],
        runs=[
            (
                each.group.name,
                run["seed"],
                format_number(run["score"]),
                printable(run["run_dir"] or run["run_id"] or "-"),
            )
            for each in comparison.groups
            for run in each.list_runs()
        ],
        left_out=[(printable(each.run), printable(each.reason)) for each in comparison.left_out],
        notes=[printable(note) for note in comparison.notes],
        confidence=f"{100 * comparison.confidence:g} %",
        comparisons=len(comparison.verdicts),
    )
