"""The end of a command that trains: its result, its exit code, and a signal before training resumes."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rl_training.cli.output import ResultLost, Summary, write_result
from rl_training.run_layout import find_run_directory
from rl_training.runs.stopping import EXIT_STOPPED
from rl_training.security.import_guard import exclude_from_imports
from rl_training.system.signal_handlers import SIGNALS

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


class StoppedEarly(Exception):
    """A signal stopped a command before it resumed training."""


@contextmanager
def report_unchanged_source(source: str) -> Iterator[None]:
    """Reports after a signal in the block, before training resumes, that the source is unchanged.

    Raises:
        StoppedEarly: A signal arrived in the block.
    """
    try:
        yield
    except KeyboardInterrupt as interruption:
        raise StoppedEarly(f"stopped before training resumed; {source} is unchanged") from interruption


@contextmanager
def forbid_imports_from(source: str) -> Iterator[None]:
    """Forbids imports from inside a received directory, for all libraries that the command imports."""
    if os.path.isdir(source):  # noqa: PTH112, because `Path.is_dir` raises for a text that is too long
        exclude_from_imports(find_run_directory(Path(source)))
    yield


def finish(summary: Summary, out: TextIO, as_json: bool, *, offline: bool = False) -> int:
    """Writes the summary of a run and returns the exit code. Signals are ignored from here on.

    Raises:
        ResultLost: The summary can't be written, and the exit code would be 0.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    code = EXIT_FAILED if summary.unsent and not offline else 0
    if summary.stop_reason == "signal":
        code = EXIT_STOPPED
    try:
        write_result(out, summary.to_dict(), summary.lines(), as_json=as_json)
    except ResultLost as lost:
        if code == 0:
            raise
        logger.error("%s", lost)
    return code
