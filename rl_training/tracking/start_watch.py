"""Telling a process that starts slowly, because the machine is busy, from one that hangs."""

from __future__ import annotations

import time

import psutil  # type: ignore[import-untyped]

PROGRESS_SECONDS = 0.05
"""CPU time that counts as progress: more than a thread uses in minutes that only waits, and looks every second."""


class StartWatch:
    """Watches a process by the CPU time that it uses, which a busy machine hands out slowly, but always does.

    Args:
        pid: The process.
        still: How many seconds it may make no progress.
        cpu: How many seconds of CPU time it may use; what uses more is caught in a loop.
    """

    def __init__(self, pid: int, *, still: float, cpu: float) -> None:
        self._process = psutil.Process(pid)
        self._still, self._cpu = still, cpu
        self._used, self._moved_at = 0.0, time.monotonic()

    def hangs(self) -> bool:
        """Whether the process has made no progress for too long; false if it has ended, which its owner sees."""
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return False
        used = times.user + times.system
        if used - self._used >= PROGRESS_SECONDS and used < self._cpu:
            self._used, self._moved_at = used, time.monotonic()
        return time.monotonic() - self._moved_at > self._still
