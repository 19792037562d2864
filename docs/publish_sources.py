"""Publishes the source files that pages link to, so that the site needs no hosted repository.

A link such as `../rl_training/seeding.py#L12` opens the file when the page is read in the repository. In the site it
opens a page with the highlighted file and an anchor at each line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
CHANGELOG = Path("CHANGELOG.md")
COPIED = {".png", ".json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file outside of docs/ that a page links to."""
    linked = {CHANGELOG}
    for file in files.documentation_pages():
        linked |= {path for match in LINK.finditer(file.content_string) if (path := _source(file, match[1]))}
    for path in sorted(linked):
        name = _published_name(path)
        if path.suffix in COPIED:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
        else:
            files.append(File.generated(config, name, content=_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to source files at their published pages."""

    def published(match: re.Match[str]) -> str:
        path = _source(page.file, match[1])
        if path is None:
            return match[0]
        target = os.path.relpath(_published_name(path), os.path.dirname(page.file.src_uri))  # noqa: PTH120
        return f"]({target}{match[2] or ''})"

    return LINK.sub(published, markdown)


def _source(file: File, link: str) -> Path | None:
    """Returns the linked path relative to the repository, or None for a link that stays inside docs/."""
    path = Path(os.path.normpath(ROOT / "docs" / Path(file.src_uri).parent / link))
    inside_docs = path.is_relative_to(ROOT / "docs")
    return None if inside_docs or not path.is_file() else path.relative_to(ROOT)


def _published_name(path: Path) -> str:
    return f"source/{path}" if path.suffix in COPIED or path == CHANGELOG else f"source/{path}.md"


def _page(path: Path) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path == CHANGELOG:
        return text.replace("](docs/", "](../")
    try:
        lexer = get_lexer_for_filename(path.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).splitlines()
    anchored = "\n".join(
        f'<span class="line" id="L{number}">{line}</span>' for number, line in enumerate(lines, start=1)
    )
    return (
        f"---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# {path}\n\n"
        f'<div class="highlight"><pre class="source"><code>{anchored}</code></pre></div>\n'
    )
