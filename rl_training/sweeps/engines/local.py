"""Runs trials as processes of this machine, each on CPUs and GPUs of its own."""

from __future__ import annotations

import logging
import math
import os
import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from rl_training.errors import UserError
from rl_training.runs.stopping import EXIT_SECONDS, StopFlag
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.engines.trial_child import TrialChild
from rl_training.sweeps.plan import RunRecord

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""Interval at which the stop flag is polled."""

Ended = tuple[TrialChild, RunRecord | Lost]


class LocalEngine:
    """One process a segment, as many at once as there are CPUs, GPUs and memory for.

    The memory that is available when `run` is called limits the number of processes; the system is not asked to limit
    a process, because libraries such as torch reserve much more than they use.
    """

    def __init__(self) -> None:
        self._running: dict[TrialChild, Slot] = {}

    def run(self, segments: Sequence[Segment], stop: StopFlag) -> Iterator[tuple[Segment, RunRecord | Lost]]:
        """Runs the segments; see `Engine.run`."""
        waiting, ended = deque(segments), queue.SimpleQueue[Ended]()
        slots = make_slots(segments[0], len(segments)) if segments else []
        try:
            while waiting or self._running:
                while waiting and slots and not stop.requested:
                    self._start(waiting.popleft(), slots.pop(0), ended)
                if stop.requested:
                    yield from self._stop(ended)
                    return
                try:
                    child, result = ended.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                slots.append(self._running.pop(child))
                yield child.segment, result
        finally:
            self.close()

    def close(self) -> None:
        """Ends the processes that still run, at once."""
        for child in self._running:
            child.kill()
        self._running.clear()

    def _start(self, segment: Segment, slot: Slot, ended: queue.SimpleQueue[Ended]) -> None:
        child = TrialChild(segment, slot.cpus, slot.gpus)
        self._running[child] = slot
        child.watch(lambda child, result: ended.put((child, result)))

    def _stop(self, ended: queue.SimpleQueue[Ended]) -> Iterator[tuple[Segment, RunRecord]]:
        """Lets the running processes save; yields the records of those that were just complete."""
        for child in self._running:
            child.stop()
        deadline = time.monotonic() + EXIT_SECONDS
        while self._running and (left := deadline - time.monotonic()) > 0:
            try:
                child, result = ended.get(timeout=left)
            except queue.Empty:
                break
            del self._running[child]
            if isinstance(result, RunRecord):
                yield child.segment, result
        if self._running:
            logger.warning("%d trials did not end within %.0f s; they are killed", len(self._running), EXIT_SECONDS)


@dataclass(frozen=True)
class Slot:
    """The CPUs and GPUs of one process at a time."""

    cpus: Sequence[int]
    gpus: Sequence[str]


def make_slots(need: Segment, most: int) -> list[Slot]:
    """Returns the slots for segments on this machine.

    Args:
        need: One of the segments, which all need the same.
        most: The number of segments.

    Raises:
        UserError: This machine does not have the GPUs that a segment needs.
    """
    cpus = list_cpus()
    number = max(1, len(cpus) // need.cpus)
    if need.cpus > len(cpus):
        logger.warning(
            "resources.cpus: got %d, and this process may use %d; trials run one at a time", need.cpus, len(cpus)
        )
    gpus = _list_gpu_shares(need.gpus)
    if gpus is not None:
        number = min(number, len(gpus))
    if need.memory_gb is not None:
        available = psutil.virtual_memory().available / 1e9
        number = max(1, min(number, math.floor(available / need.memory_gb)))
    number = min(number, most)
    return [Slot(cpus[i * need.cpus : (i + 1) * need.cpus], [] if gpus is None else gpus[i]) for i in range(number)]


def list_cpus() -> list[int]:
    """Returns the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _list_gpu_shares(need: float) -> list[list[str]] | None:
    """Returns the GPUs of each process: several, one, or a share of one; None if a process needs none.

    Raises:
        UserError: There are fewer GPUs than a process needs.
    """
    if need == 0:
        return None
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if need < 1:
        shares = [[gpu] for gpu in there for _ in range(math.floor(1 / need + 1e-9))]
    else:
        whole = math.ceil(need)
        shares = [there[i : i + whole] for i in range(0, len(there) - whole + 1, whole)]
    if not shares:
        raise UserError(f"resources.gpus: got {need:g}, and torch sees {len(there)} GPUs on this machine; lower it")
    return shares
