"""A callback that records what a process and its children have used until the first environment step of a training."""

from __future__ import annotations

import json
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from rl_training import Callback, TrainerState

RESULT = "RL_TRAINING_BENCH_START"
"""The environment variable with the file that the callback writes."""


class FirstStep(Callback):
    """Writes the CPU and wall time until the first step, and the peak memory when training ends, as JSON."""

    def __init__(self) -> None:
        self._start: dict[str, Any] | None = None

    def on_step(self, state: TrainerState) -> None:
        """Measures the time once."""
        if self._start is None:
            self._start = measure_start()

    def on_train_end(self, state: TrainerState) -> None:
        """Writes the measurements."""
        Path(os.environ[RESULT]).write_text(json.dumps({**(self._start or {}), "peak_memory_bytes": read_peak()}))


def measure_start() -> dict[str, float]:
    """Returns the seconds since this process started, and the CPU seconds used by it and by its descendants."""
    process = psutil.Process()
    own, waited_for = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = 0.0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            running += sum(child.cpu_times()[:4])  # with the children that it has waited for
    return {
        "cpu_seconds": own.ru_utime + own.ru_stime + waited_for.ru_utime + waited_for.ru_stime + running,
        "own_cpu_seconds": own.ru_utime + own.ru_stime,
        "wall_seconds": time.time() - process.create_time(),
    }


def read_peak() -> int:
    """Returns the peak memory of this process, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])
