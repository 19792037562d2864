"""The time that training takes."""

from __future__ import annotations

import time


class TrainingTime:
    """The time since training began in this process, in the thread that creates this object.

    Args:
        num_timesteps: The environment steps of earlier processes.
    """

    def __init__(self, num_timesteps: int) -> None:
        self._wall_start, self._cpu_start, self._first_step = time.perf_counter(), time.thread_time(), num_timesteps

    def metrics(self, num_timesteps: int) -> dict[str, float]:
        """Returns the `time/*` metrics after as many environment steps in all."""
        seconds = time.perf_counter() - self._wall_start
        speed = (num_timesteps - self._first_step) / max(seconds, 1e-9)
        return {"time/steps_per_second": speed, "time/wall_seconds": seconds}

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the training thread."""
        return time.thread_time() - self._cpu_start
