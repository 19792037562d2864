"""Output of the command line: the result goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO

from rl_training.errors import RLTrainingError, UserError
from rl_training.system.standard_streams import READER_GONE

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"-?[\d,.]+%?|-|")


class ResultLost(RLTrainingError):
    """A command has succeeded, but its result could not be written."""


class Summary(Protocol):
    """The summary of a run: the result of `train` or of a flow."""

    @property
    def stop_reason(self) -> str:
        """Why training ended."""

    @property
    def unsent(self) -> str:
        """A message about data that is not in MLflow yet; empty if there is none."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary for JSON."""

    def lines(self) -> list[str]:
        """Returns the summary as text."""


@contextmanager
def result_stream() -> Iterator[TextIO]:
    """Yields the real stdout, and redirects stdout to stderr within the block, for child processes too.

    So a library or an environment that prints can't mix its output with the result.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(os.dup(kept), "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(OSError):  # `write_result` has reported the loss
            stream.close()
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which a progress bar replaces so that lines appear above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


class _WarningLines:
    """Shows each Python warning once, on one line without colours; environments repeat theirs for each instance."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(message)).split()).removeprefix("WARN: ")
        if text not in self._shown:
            self._shown.add(text)
            print(f"{category.__name__}: {text} ({filename}:{lineno})", file=sys.stderr)


def log_to_stderr() -> None:
    """Shows the log messages of this package as plain lines, and only warnings of other packages."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_StderrHandler()])
    logging.getLogger("rl_training").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns about each attempt, and we report the failure once
    warnings.showwarning = _WarningLines()


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table with aligned columns; numbers are aligned at the right."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, numeric, strict=True)
        lines.append("  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells))
    return [line.rstrip() for line in lines]


def write_result(stream: TextIO, result: Mapping[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Writes a command's result: one JSON object on one line, or lines for people.

    Raises:
        ResultLost: The result can't be written, and it is JSON, which a program expects, or it is not recorded anywhere
            else. Text may be lost when a user closes a pager before the last line; that is not an error.
    """
    try:
        print(json.dumps(result, allow_nan=False) if as_json else "\n".join(lines), file=stream, flush=True)
    except OSError as error:
        record = f"; the record of the run is in {result['run_dir']}" if "run_dir" in result else ""
        lost = f"the result could not be written to stdout: {error.strerror}{record}"
        if as_json or (error.errno not in READER_GONE and not record):
            raise ResultLost(lost) from None
        if error.errno not in READER_GONE:
            logger.error("%s", lost)


def confirm(text: str, question: str, without_terminal: str) -> bool:
    """Shows a text, and returns whether the user agrees; the answer by default is no.

    Args:
        text: What the question is about.
        question: The question.
        without_terminal: What to do where nobody can answer, for the error.

    Raises:
        UserError: Nobody is there to answer.
    """
    print(text, file=sys.stderr)
    if not sys.stdin.isatty():
        raise UserError(f"{question} Nobody can answer, because stdin is no terminal; {without_terminal}")
    print(f"{question} [y/N] ", file=sys.stderr, end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
