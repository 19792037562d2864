"""What the command line writes: the result alone to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO

from rl_training.errors import RLTrainingError
from rl_training.system.standard_streams import READER_GONE

logger = logging.getLogger(__name__)


class ResultLost(RLTrainingError):
    """A command has done its work, and its result could not be written."""


class Summary(Protocol):
    """What a run came to, of the library's `run_training` and of a flow alike."""

    @property
    def stop_reason(self) -> str:
        """Why training ended."""

    @property
    def unsent(self) -> str:
        """What is not in MLflow; empty where everything is there."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""

    def lines(self) -> list[str]:
        """Returns it for people."""


@contextmanager
def result_stream() -> Iterator[TextIO]:
    """Yields the real stdout; within the block all that writes to stdout, child processes too, goes to stderr.

    A library or an environment that prints can then not come between a caller and the result.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(os.dup(kept), "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(OSError):  # of a result that `write_result` has reported as lost
            stream.close()
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _StderrHandler(logging.Handler):
    """Looks stderr up for each record, so that lines land above a progress bar, which replaces it while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


class _WarningLines:
    """Shows a warning of Python's as one line, once, without colours: environments give theirs with each instance."""

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
    """Shows this package's messages as plain lines, and of others warnings only."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_StderrHandler()])
    logging.getLogger("rl_training").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each try; that all failed is said once, by us
    warnings.showwarning = _WarningLines()


def write_result(stream: TextIO, result: Mapping[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Writes a command's result: one JSON object on one line, or lines for people.

    Raises:
        ResultLost: It can't be written, and it is JSON, which a program waits for, or in no record. People may close a
            pager before the last line: that is no error.
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
