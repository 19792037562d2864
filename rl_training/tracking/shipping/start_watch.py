"""Telling a process that starts slowly, because the machine is busy, from one that hangs."""

from __future__ import annotations

import time

import psutil  # type: ignore[import-untyped]

START_SECONDS = 60.0
"""How long a process may make no progress while it starts.

A busy machine makes imports slow, and does not stop them, so no other clock runs until they are done.
"""

START_CPU_SECONDS = 120.0
"""How much CPU time a start may take: many times what it needs. A process that uses more is caught in a loop."""

PROGRESS_SECONDS = 0.05
"""CPU time that counts as progress: more than a thread uses in minutes that only waits, and looks every second."""


class StartWatch:
    """Watches a process by the CPU time that it uses, which a busy machine hands out slowly, but always does.

    Args:
        pid: The process, which has just been started.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._used, self._moved_at = 0.0, time.monotonic()

    def hangs(self) -> bool:
        """Whether the process has made no progress for too long; false if it has ended, which its owner sees."""
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return False
        used = times.user + times.system
        if used - self._used >= PROGRESS_SECONDS and used < START_CPU_SECONDS:
            self._used, self._moved_at = used, time.monotonic()
        return time.monotonic() - self._moved_at > START_SECONDS
