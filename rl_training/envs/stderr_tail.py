"""The last lines that worker processes wrote to their standard error, for the message when one of them dies."""

from __future__ import annotations

import subprocess
import threading
from collections import deque

_LINES = 8
_WIDTH = 300


class StderrTails:
    """Reads each process's standard error as it comes, so that the process never waits, and keeps its last lines."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[str]] = {}
        self._threads: dict[int, threading.Thread] = {}

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Begins to read `process.stderr`, until its end."""
        lines = self._lines[process.pid] = deque(maxlen=_LINES)
        thread = threading.Thread(target=_read, args=(process, lines), daemon=True)
        self._threads[process.pid] = thread
        thread.start()

    def last_lines(self, process: subprocess.Popen[bytes]) -> str:
        """Returns the last lines of an ended process, as one line."""
        self._threads[process.pid].join(1.0)
        return " | ".join(self._lines[process.pid])

    def close(self) -> None:
        """Waits shortly for the readers; one whose process left a child with the same stderr is left behind."""
        for thread in self._threads.values():
            thread.join(0.2)


def _read(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
    assert process.stderr is not None
    with process.stderr as stream:
        for line in stream:
            text = line.decode(errors="replace").strip()
            if text:
                lines.append(text[:_WIDTH])
