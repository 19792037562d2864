"""Segments as processes of this machine, each a task run of the sweep's flow run."""

from __future__ import annotations

import queue
import sys
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from rl_training.flows.sweep_engines.segment_task import admit_segments, end_task, stop_segments, train_segment
from rl_training.flows.sweep_engines.task_runner_cluster import Handle, TaskRunnerCluster
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.engines.local import Slot, make_slots
from rl_training.sweeps.segments import from_text


class LocalCluster(TaskRunnerCluster):
    """This machine, with as many segments at once as it has room for: the slots of the local engine."""

    def __init__(self) -> None:
        self._runner: ThreadPoolTaskRunner[str] | None = None
        self._task: Task[..., str] | None = None
        self._sweep_uids: set[str] = set()

    def _submit(self, segment: Segment, parameters: dict[str, Any]) -> Handle:
        if segment.sweep_uid not in self._sweep_uids:
            admit_segments(segment.sweep_uid)
            self._sweep_uids.add(segment.sweep_uid)
        if self._runner is None or self._task is None:
            slots = make_slots(segment, sys.maxsize)
            self._task = _make_task(slots)
            self._runner = ThreadPoolTaskRunner(max_workers=len(slots))
            self._runner.__enter__()
        return self._runner.submit(self._task, {"key": parameters["key"], "segment": parameters["segment"]})

    def stop(self, handles: Sequence[Handle]) -> None:
        """Lets the segments save; see `Cluster.stop`."""
        for uid in self._sweep_uids:
            stop_segments(uid)

    def close(self) -> None:
        """Ends the threads."""
        if self._runner is not None:
            self._runner.__exit__(None, None, None)


def _make_task(slots: Sequence[Slot]) -> Task[..., str]:
    """Returns the task `run-segment` for this process, in which each segment takes a slot."""
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    @task(name="run-segment", task_run_name="{key}", cache_policy=NO_CACHE)
    def run_segment_here(key: str, segment: str) -> str:
        slot = free.get()
        try:
            result = train_segment(from_text(segment, Segment), slot.cpus, slot.gpus)
        finally:
            free.put(slot)
        return end_task(result)

    return run_segment_here
