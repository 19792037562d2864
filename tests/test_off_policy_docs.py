"""Each detail on the pages of the off-policy algorithms is linked to the line that implements it."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs" / "algorithms"
PAGES = ("dqn.md", "sac.md", "td3.md", "tqc.md", "hindsight.md")
LINKS = [
    (page, *link)
    for page in PAGES
    for link in re.findall(r"\[`([^`]+)`\]\(([^)#]+)#L(\d+)\)", (DOCS / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_links_its_details(page: str) -> None:
    """TQC's page has only what differs from SAC."""
    assert sum(link[0] == page for link in LINKS) >= {"tqc.md": 12, "hindsight.md": 24}.get(page, 28)


@pytest.mark.parametrize(("page", "snippet", "target", "line"), LINKS, ids=[" ".join(link[:2]) for link in LINKS])
def test_the_line_says_what_the_page_quotes(page: str, snippet: str, target: str, line: str) -> None:
    source = (DOCS / target).resolve().read_text(encoding="utf-8").splitlines()
    snippet = snippet.replace("\\|", "|")  # a bar would end a table's cell
    found = [number for number, text in enumerate(source, start=1) if snippet in text]
    assert int(line) in found, f"{snippet!r} is on line {found} of {target}, {page} says {line}"
