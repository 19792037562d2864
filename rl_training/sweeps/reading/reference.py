"""Writes the tables of docs/reference/sweeps.md from the settings classes.

`python -m rl_training.sweeps.reading.reference docs/reference/sweeps.md` updates that page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import fill

from rl_training.config import reference
from rl_training.config.resume_rules import EXPLORABLE
from rl_training.sweeps.reading.space_checks import FIXED
from rl_training.sweeps.sweep_config import Parameter, SweepConfig

_FIXED = re.compile(r"(<!-- settings that are not varied -->\n).*?(<!-- end -->)", re.DOTALL)
_EXPLORABLE = re.compile(r"(<!-- settings that a fork may change -->\n).*?(<!-- end -->)", re.DOTALL)


def update_page(page: str) -> str:
    """Returns the page with each block updated; see `rl_training.config.reference.update_page`."""
    page = reference.update_page(page, {"SweepConfig": (SweepConfig, None), "Parameter": (Parameter, None)})
    page = _FIXED.sub(lambda match: f"{match[1]}\n{_format_fixed()}\n{match[2]}", page)
    explorable = fill(", ".join(f"`{name}`" for name in EXPLORABLE), 120, break_on_hyphens=False)
    return _EXPLORABLE.sub(lambda match: f"{match[1]}\n{explorable}\n\n{match[2]}", page)


def _format_fixed() -> str:
    """Returns a Markdown table of the settings that a sweep does not vary, one row per reason."""
    rows = ["| setting | why not |", "|---|---|"]
    for reason in dict.fromkeys(FIXED.values()):
        names = ", ".join(f"`{name}`" for name, its_reason in FIXED.items() if its_reason == reason)
        rows.append(f"| {names} | {reason} |")
    return "\n".join([*rows, ""])


def main(page: str) -> None:
    """Updates the page at the path `page`."""
    path = Path(page)
    path.write_text(update_page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
