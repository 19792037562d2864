"""Writes the page of a report where the user wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.errors import UserError
from rl_training.system.durable_files import replace_file


def require_place(path: Path) -> None:
    """Refuses a path at which no page can be written, before the run is read.

    Raises:
        UserError: It is a folder, or its folder does not exist.
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


def write_page(path: Path, page: str) -> None:
    """Writes the page.

    Raises:
        UserError: It can't be written.
    """
    with _explain_faults(path):
        replace_file(path, page)


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
