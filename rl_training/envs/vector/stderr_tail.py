"""The last lines that a worker process wrote to its standard error, for the message when it dies."""

from __future__ import annotations

import subprocess
import threading
from collections import deque

_LINES = 8
_WIDTH = 300


class StderrTail:
    """Reads a process's standard error as it comes, so that the process never waits, and keeps the last lines.

    Args:
        process: Started with `stderr=subprocess.PIPE`.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last_lines(self) -> str:
        """Returns the last lines of the ended process, as one line."""
        self._thread.join(1.0)
        return " | ".join(self._lines)

    def close(self) -> None:
        """Waits shortly for the reader; one whose process left a child with the same stderr is left behind."""
        self._thread.join(0.2)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text[:_WIDTH])
