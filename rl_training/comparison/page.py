"""The page of a comparison: one file of HTML that loads nothing, for a browser, a printer, or MLflow's artifacts."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from rl_training import __version__
from rl_training.comparison.figures import draw_pictures
from rl_training.comparison.text_tables import describe_comparison, make_settings_table, make_table
from rl_training.comparison.verdicts import format_number
from rl_training.errors import printable

if TYPE_CHECKING:
    from rl_training.comparison.comparison import Comparison

TEMPLATE = "page.html"


def make_page(comparison: Comparison) -> str:
    """Returns the page of a comparison. All text is escaped, because names and settings come from the runs."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    headings, rows = make_table(comparison)
    setting_headings, setting_rows = make_settings_table(comparison)
    return template.render(
        title=printable(comparison.env_id),
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
        version=__version__,
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
