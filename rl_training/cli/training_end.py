"""How a command that trains ends: its result and exit code, and a signal before training went on."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rl_training.cli.output import ResultLost, Summary, write_result
from rl_training.run_layout import find_run_directory
from rl_training.runs.stopping import EXIT_STOPPED
from rl_training.security.import_guard import keep_out
from rl_training.system.signal_handlers import SIGNALS

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


class StoppedEarly(Exception):
    """A signal stopped a command that goes on from a source before it had begun to."""


@contextmanager
def source_stays(source: str) -> Iterator[None]:
    """Says of a signal in the block, before training goes on, that the same command goes on later."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        raise StoppedEarly(f"stopped before training went on; {source} is as it was") from interruption


@contextmanager
def keeping_out(source: str) -> Iterator[None]:
    """Has nothing imported from inside a received directory, by the libraries either that the command imports."""
    if source and Path(source).is_dir():
        keep_out(find_run_directory(Path(source)))
    yield


def finish(summary: Summary, out: TextIO, as_json: bool, *, offline: bool = False) -> int:
    """Writes what a run came to and returns the exit code; no signal is heeded any more.

    Raises:
        ResultLost: The result can't be written, and the exit code would not tell that anything is wrong.
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
