"""Writes a page where the user wants it; no file but an earlier page of the same kind is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import UserError
from rl_training.security.untrusted_json import open_plain_file
from rl_training.system.durable_files import replace_file

_HEAD = 1_000
"""The bytes of a page within which its mark lies; all text from a run comes after it."""


@dataclass(frozen=True)
class PageKind:
    """A kind of page."""

    noun: str
    """What messages call it."""
    generator: str
    """The command that writes it, which the head of the page names."""

    @property
    def mark(self) -> bytes:
        """The line by which an earlier page is known."""
        return f'<meta name="generator" content="{self.generator}">'.encode()


REPORT = PageKind("report", "rl-training report")
COMPARISON = PageKind("comparison", "rl-training compare")


def require_place(path: Path, kind: PageKind) -> None:
    """Refuses a path at which no page can be written, before the runs are read.

    Raises:
        UserError: It is a folder or a file that is no such page, or its folder does not exist.
    """
    noun = kind.noun
    with _explain_faults(path, noun):
        if path.is_dir():
            raise UserError(
                f"{path} is a folder, expected a file for the {noun}; name one, such as {path / f'{noun}.html'}"
            )
        if not path.parent.is_dir():
            raise UserError(
                f"{path.parent} is not a folder, expected one in which {path.name} can be written; make it, or name a "
                f"file elsewhere"
            )
        if path.exists() and not _is_earlier_page(path, kind):
            raise UserError(
                f"{path} exists and is no {noun} of `{kind.generator}`, expected a new file or an earlier {noun}; name "
                f"another file, such as {path.with_name(f'{path.stem}-{noun}.html')}"
            )


def write_page(path: Path, kind: PageKind, page: str) -> None:
    """Writes the page.

    Raises:
        UserError: It can't be written.
    """
    with _explain_faults(path, kind.noun):
        replace_file(path, page)


def _is_earlier_page(path: Path, kind: PageKind) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with open_plain_file(path) as file:
        return kind.mark in file.read(_HEAD)


@contextmanager
def _explain_faults(path: Path, noun: str) -> Iterator[None]:
    """Turns errors of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} can't be written: {error.strerror or error}; expected a folder with room for the {noun} that you "
            f"may write to; name a file elsewhere"
        ) from None
