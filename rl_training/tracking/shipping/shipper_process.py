"""The shipper as the training process sees it: starts it, reads its lines, and notices if it hangs at its start."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import rl_training
from rl_training.run_layout import SHIPPER_LOG
from rl_training.system.constructor_cleanup import kill_on_close
from rl_training.system.paths import URI_VARIABLE

LOADED, ANSWERED, CAUGHT_UP = {"step": "loaded"}, {"step": "answered"}, {"step": "caught up"}
"""Lines that the process prints: MLflow is imported, the server has answered, and everything so far is sent."""

SENT = {"step": "sent"}
"""A line that the process prints for each piece that it has sent since training ended."""

START_SECONDS = 60.0
"""How long the process may make no progress while it starts.

A busy machine slows imports down but does not stop them, so no other limit applies until they are done.
"""

START_CPU_SECONDS = 120.0
"""Limit on the CPU time of a start, many times what it needs; a process that uses more is caught in a loop."""

PROGRESS_SECONDS = 0.05
"""CPU time that counts as progress: more than a thread that only waits and polls every second uses in minutes."""

EXIT_SECONDS = 15.0
"""How long to wait for the exit code after the process has closed its output."""


class ShipperProcess:
    """The process that sends a run to MLflow.

    Args:
        run_dir: The run's directory.
        tracking_uri: The store, resolved.
        opened: Kills the process when it is closed, which only happens if a constructor fails.
    """

    def __init__(self, run_dir: Path, tracking_uri: str, opened: ExitStack) -> None:
        self._log = run_dir / SHIPPER_LOG
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.popen = kill_on_close(opened, self._start(run_dir, tracking_uri))
        self._usage = psutil.Process(self.popen.pid)
        self._cpu_seconds, self._progress_at = 0.0, time.monotonic()
        threading.Thread(target=self._read_lines, daemon=True).start()

    def read_line(self, seconds: float) -> str | None:
        """Returns the shipper's next line; "" if the process has ended, None if no line came within `seconds`."""
        try:
            return self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def hangs(self) -> bool:
        """Returns whether the process has made no progress for too long; False if it has ended.

        Progress is measured in CPU time: a busy machine grants it slowly, but it always does.
        """
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return False
        used = times.user + times.system
        if used - self._cpu_seconds >= PROGRESS_SECONDS and used < START_CPU_SECONDS:
            self._cpu_seconds, self._progress_at = used, time.monotonic()
        return time.monotonic() - self._progress_at > START_SECONDS

    def explain_silence(self) -> str:
        """Returns why the process sends no line, with the last line of its log if it has ended."""
        if self.popen.poll() is None:
            return "no answer in time"
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "its log is empty")
        return f"its process ended with exit code {self.popen.returncode}: {last.strip()}"

    def announce_end(self) -> None:
        """Tells the shipper that training has ended, by closing its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits until the process has ended, at most `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, seconds))

    def kill(self) -> None:
        """Kills the process and waits for its end."""
        self.popen.kill()
        self.popen.wait()

    def _start(self, run_dir: Path, tracking_uri: str) -> subprocess.Popen[str]:
        root = str(Path(rl_training.__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "rl_training.tracking.shipping.shipper", str(run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, URI_VARIABLE: tracking_uri, "PYTHONPATH": path},
                start_new_session=True,  # so that a signal to training's process group does not reach the shipper
            )

    def _read_lines(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line)
        self.wait(EXIT_SECONDS)  # the output closes a moment before the process has ended
        self._lines.put("")
