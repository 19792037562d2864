"""Keeps the last lines that a worker process wrote to its standard error, for the message if the process dies."""

from __future__ import annotations

import subprocess
import threading
from collections import deque

_LINES = 8
_WIDTH = 300


class StderrTail:
    """Reads the standard error of a process continuously, so that the process never blocks, and keeps the last lines.

    Args:
        process: The process, started with `stderr=subprocess.PIPE`.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last_lines(self) -> str:
        """Returns the last lines of the process, which has ended, joined into one line."""
        self._thread.join(1.0)
        return " | ".join(self._lines)

    def close(self) -> None:
        """Waits briefly for the reading thread; it is left running if a child of the process still holds the stderr."""
        self._thread.join(0.2)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text[:_WIDTH])
