"""Pages of HTML that load nothing: one file for a browser, a printer, or MLflow's artifacts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rl_training import __version__
from rl_training.pages.page_file import PageKind


def render_page(template: Path, title: str, kind: PageKind, **values: Any) -> str:
    """Returns a page. All text is escaped, because names and settings come from the runs.

    Args:
        template: The template, which extends `base.html` of this package.
        title: The title of the page.
        kind: The kind of the page, by which an earlier one is known.
        values: What the template names.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(
        title=title,
        generator=kind.generator,
        version=__version__,
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )
