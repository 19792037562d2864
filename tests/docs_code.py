"""The Python blocks of the documentation, for the tests that run them."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def run_block(page: str, heading: str) -> Any:
    """Runs the first Python block below a heading of a page; returns the names that it defines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n{heading}\n", 1)[1]
    block = re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert block is not None, f"{page} has no Python block below {heading!r}"
    names: dict[str, Any] = {}
    exec(compile(block[1], f"docs/{page}", "exec"), names)
    return SimpleNamespace(**names)


def losses_of(algorithm: str) -> Any:
    """Returns the functions that an algorithm's page writes in plain torch."""
    return run_block(f"algorithms/{algorithm}.md", "## The losses in plain torch")
