"""How a command that trains ends: its result and exit code, and a signal before training went on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rl_training.cli_output import Summary, write_result
from rl_training.runtime.stopping import EXIT_STOPPED

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


def finish(summary: Summary, out: TextIO, as_json: bool, *, offline: bool = False) -> int:
    """Writes what a run came to and returns the exit code; no signal is heeded any more."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    write_result(out, summary.to_dict(), summary.lines(), as_json=as_json)
    if summary.stop_reason == "signal":
        return EXIT_STOPPED
    return EXIT_FAILED if summary.unsent and not offline else 0
