"""Logs the load of the machine and of the training process; off by default.

`RL_TRAINING_SYSTEM_METRICS=10` logs the load every 10 seconds. The shipper process measures it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from rl_training.errors import UserError

VARIABLE = "RL_TRAINING_SYSTEM_METRICS"
"""Environment variable: seconds between two records; unset or 0 for none."""

_MEBIBYTE = 2**20


class SystemMetrics:
    """Appends to `system_metrics.jsonl`, which has the format of `metrics.jsonl`.

    Args:
        path: The file.
        pid: Id of the training process.
        every: Seconds between two records.
    """

    def __init__(self, path: Path, pid: int, every: float) -> None:
        self._path, self._every = path, every
        self._process = psutil.Process(pid)
        self._process.cpu_percent()  # the first call only starts the interval
        psutil.cpu_percent()
        self._next = time.monotonic() + every

    def record(self, step: int) -> None:
        """Appends one line if it is due and the training process still exists."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        try:
            with self._process.oneshot():
                cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss / _MEBIBYTE
        except psutil.NoSuchProcess:
            return
        metrics = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/memory_usage_percentage": psutil.virtual_memory().percent,
            "system/training_cpu_percentage": cpu,
            "system/training_memory_megabytes": memory,
        }
        line = {"event": "system", "step": step, "time": round(time.time(), 3), "metrics": metrics}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_interval() -> float:
    """Returns the seconds between two records from `$RL_TRAINING_SYSTEM_METRICS`, or 0 for none.

    Raises:
        UserError: The variable is no number.
    """
    text = os.environ.get(VARIABLE, "0")
    try:
        return max(0.0, float(text))
    except ValueError:
        raise UserError(f"{VARIABLE} is {text!r}; expected a number of seconds, for example 10") from None
