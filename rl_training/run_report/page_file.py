"""Writes the page of a report where the user wants it; no file but an earlier report is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.errors import UserError
from rl_training.security.untrusted_json import open_plain_file
from rl_training.system.durable_files import replace_file

GENERATOR = "rl-training report"
"""What the head of a page names as its maker."""
_MARK = f'<meta name="generator" content="{GENERATOR}">'.encode()
_HEAD = 1_000
"""The bytes of a page within which its mark lies; all text from a run comes after it."""


def require_place(path: Path) -> None:
    """Refuses a path at which no page can be written, before the run is read.

    Raises:
        UserError: It is a folder or a file that is no report, or its folder does not exist.
    """
    with _explain_faults(path):
        if path.is_dir():
            raise UserError(
                f"{path} is a folder, expected a file for the report; name one, such as {path / 'report.html'}"
            )
        if not path.parent.is_dir():
            raise UserError(
                f"{path.parent} is not a folder, expected one in which {path.name} can be written; make it, or name a "
                f"file elsewhere"
            )
        if path.exists() and not _is_report(path):
            raise UserError(
                f"{path} exists and is no report of `{GENERATOR}`, expected a new file or an earlier report; name "
                f"another file, such as {path.with_name(f'{path.stem}-report.html')}"
            )


def write_page(path: Path, page: str) -> None:
    """Writes the page.

    Raises:
        UserError: It can't be written.
    """
    with _explain_faults(path):
        replace_file(path, page)


def _is_report(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with open_plain_file(path) as file:
        return _MARK in file.read(_HEAD)


@contextmanager
def _explain_faults(path: Path) -> Iterator[None]:
    """Turns errors of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} can't be written: {error.strerror or error}; expected a folder with room for the report that you "
            f"may write to; name a file elsewhere"
        ) from None
