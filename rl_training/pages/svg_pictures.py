"""Pictures as SVG for pages of HTML, drawn by matplotlib.

Text in them takes the colour of the text around, so that they can be read on light and on dark pages.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""The colour of text and axes while a picture is drawn; in the SVG it is the colour of the text around."""

COLORS = ("#3b8bc9", "#d9622b", "#1fa27a", "#c774a8", "#d99a1c", "#7a6fd0")
"""Colours that can be told apart on white and on black, also by colour-blind people (after Okabe and Ito 2008)."""
DASHES = ("-", "--", ":", "-.")

_STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # the name of a metric may contain $
    "grid.color": INK,
    "grid.alpha": 0.12,
    "axes.grid": True,
    "axes.axisbelow": True,
    "font.size": 10,
}


def draw_svg(title: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Returns a picture as an SVG element.

    Args:
        title: Its title, whose words also begin its ids, because several pictures stand in one page.
        size: Width and height in inches.
        draw: Draws on an empty figure.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot, which would need a window system and keep global state

    name = title.lower().replace(" ", "-")
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        return _convert_to_svg(figure, name, title)


def _convert_to_svg(figure: Figure, name: str, title: str) -> str:
    """Returns a figure as an SVG element whose ids begin with its name, as several stand in one page."""
    stream = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    for reference in ('id="', 'href="#', "url(#"):
        svg = svg.replace(reference, f"{reference}{name}-")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
