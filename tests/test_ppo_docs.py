"""Each detail on PPO's page is linked to the line that implements it."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "algorithms" / "ppo.md"
LINKS = re.findall(r"\[`([^`]+)`\]\(([^)#]+)#L(\d+)\)", PAGE.read_text(encoding="utf-8"))


def test_the_page_links_its_details() -> None:
    assert len(LINKS) >= 35


@pytest.mark.parametrize(("snippet", "target", "line"), LINKS, ids=[snippet for snippet, _, _ in LINKS])
def test_the_line_says_what_the_page_quotes(snippet: str, target: str, line: str) -> None:
    source = (PAGE.parent / target).resolve().read_text(encoding="utf-8").splitlines()
    found = [number for number, text in enumerate(source, start=1) if snippet in text]
    assert int(line) in found, f"{snippet!r} is on line {found} of {target}, the page says {line}"
