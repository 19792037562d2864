"""A cluster behind one of Prefect's task runners: each segment is a task run of the sweep's flow run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prefect.client.orchestration import get_client
from prefect.futures import PrefectFuture
from prefect.states import Crashed

from rl_training.errors import UserError, error_line
from rl_training.flows.sweep_engines.segment_task import describe_place
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import from_text, to_text

logger = logging.getLogger(__name__)

READY_SECONDS = 0.01
"""Time that a poll gives to the future of a segment."""

Handle = PrefectFuture[str]


class TaskRunnerCluster:
    """What clusters have in common that run a segment as a Prefect task."""

    def submit(self, segment: Segment) -> Handle:
        """Hands a segment over; see `Cluster.submit`."""
        return self._submit(segment, {"key": segment.key, "segment": to_text(segment), **describe_place()})

    def _submit(self, segment: Segment, parameters: dict[str, Any]) -> Handle:
        """Submits the task `run-segment` with the resources of the segment."""
        raise NotImplementedError

    def poll(self, handles: Mapping[str, Handle]) -> Iterator[tuple[str, RunRecord | Lost]]:
        """Yields the segments that have ended; see `Cluster.poll`."""
        for key, future in handles.items():
            try:
                text = future.result(timeout=READY_SECONDS)
            except TimeoutError:
                continue
            except UserError:
                raise
            except Exception as error:  # the task's, or the cluster's: its worker or its node is gone
                _mark_as_crashed(future, error)
                yield key, Lost(error_line(error))
                continue
            try:
                yield key, from_text(text, RunRecord)
            except NotReadable as error:
                yield key, Lost(f"its record can't be read: {error}")

    def stop(self, handles: Sequence[Handle]) -> None:
        """Asks segments to save; see `Cluster.stop`."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what was started for the sweep."""
        raise NotImplementedError


def _mark_as_crashed(future: Handle, error: Exception) -> None:
    """Ends the task run in Prefect if its process could not, so that it does not seem to run for ever."""
    with suppress(Exception), get_client(sync_client=True) as client:  # for Prefect's pages only
        task_run = client.read_task_run(future.task_run_id)
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(future.task_run_id, Crashed(message=error_line(error)), force=True)
