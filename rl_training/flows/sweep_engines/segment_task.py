"""The Prefect task that trains one segment, on whichever node a task runner takes it to."""

from __future__ import annotations

import queue
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Crashed

from rl_training import __version__
from rl_training.errors import ConfigError
from rl_training.security.secrets import redact_text
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.engines.trial_child import TrialChild
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import from_text, to_text
from rl_training.tracking.mlflow_store import resolve_tracking_uri, strip_credentials

POLL_SECONDS = 0.5
SAVE_SECONDS = 25.0
"""Time that a trial has to save before its process is killed."""

_stopped: set[str] = set()
"""The sweeps whose segments on this process are to save and end, by `uid`."""


@task(name="run-segment", task_run_name="{key}", cache_policy=NO_CACHE, retries=0)
def run_segment(key: str, segment: str, tracking_uri: str, version: str) -> str:
    """Trains a segment in a process of its own, and returns its record. Only text crosses the cluster.

    Args:
        key: The key of the segment, for Prefect's pages.
        segment: The segment as JSON.
        tracking_uri: Where the sweep logs to; the node must log to the same place.
        version: The version of rl_training of the sweep.

    Returns:
        The record as JSON; the task ends as Crashed if the process has ended without one.

    Raises:
        ConfigError: This node logs elsewhere, or has another version.
    """
    require_same_place(tracking_uri, version)
    return end_task(train_segment(from_text(segment, Segment)))


def end_task(result: RunRecord | Lost) -> str:
    """Returns what the task returns: the record as JSON, or the state Crashed if the segment is lost."""
    if isinstance(result, Lost):
        return cast("str", Crashed(message=f"{result.reason} on {socket.gethostname()}"))
    return to_text(result)


def describe_place() -> dict[str, str]:
    """Returns the parameters of `run_segment` that every node is compared with."""
    return {"tracking_uri": _describe_tracking(), "version": __version__}


def require_same_place(tracking_uri: str, version: str) -> None:
    """Checks that this node has the version of the sweep, and logs to the same place.

    Raises:
        ConfigError: It does not.
    """
    if version != __version__:
        raise ConfigError(
            f"node {socket.gethostname()} has rl_training {__version__}, and the sweep was started with {version}; "
            f"install the same version on all nodes, because trials on others would differ"
        )
    if (ours := _describe_tracking()) != tracking_uri:
        raise ConfigError(
            f"node {socket.gethostname()} logs to {ours}, and the sweep to {tracking_uri}; start the nodes with the "
            f"environment variable MLFLOW_TRACKING_URI of the sweep, whose server all of them must reach"
        )


def train_segment(
    segment: Segment,
    cpus: Collection[int] = (),
    gpus: Collection[str] | None = None,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RunRecord | Lost:
    """Trains a segment in a process of its own; the process saves and ends if this thread is interrupted.

    Args:
        segment: The segment.
        cpus: Numbers of the CPUs that the process may use; empty leaves it where this process is.
        gpus: Numbers of the GPUs that the process may use; None leaves those of this process.
        is_stopped: Polled; if it returns True, the process saves and ends.
    """
    if segment.sweep_uid in _stopped:
        return Lost("the sweep was told to stop")
    ended: queue.SimpleQueue[RunRecord | Lost] = queue.SimpleQueue()
    child = TrialChild(segment, cpus, gpus)
    child.watch(lambda _, result: ended.put(result))
    is_released = _watch_dask()
    try:
        while segment.sweep_uid not in _stopped and not is_released() and not is_stopped():
            with suppress(queue.Empty):
                return ended.get(timeout=POLL_SECONDS)
    except BaseException:
        _let_save(child, ended)
        raise
    return _let_save(child, ended)


def _let_save(child: TrialChild, ended: queue.SimpleQueue[RunRecord | Lost]) -> RunRecord | Lost:
    child.stop()
    try:
        return ended.get(timeout=SAVE_SECONDS)
    except queue.Empty:
        child.kill()
        return ended.get()


def stop_segments(sweep_uid: str) -> None:
    """Makes the segments of a sweep on this process save and end, those too that come later."""
    _stopped.add(sweep_uid)


def admit_segments(sweep_uid: str) -> None:
    """Lets the segments of a sweep run on this process, after an earlier `stop_segments`."""
    _stopped.discard(sweep_uid)


def _watch_dask() -> Callable[[], bool]:
    """Returns a function that tells whether Dask no longer wants this task, because its client is gone.

    Dask does not interrupt a task that runs. Ray does, and Prefect ends the process of a flow run.
    """
    if "distributed" not in sys.modules:
        return lambda: False
    from distributed import get_worker

    try:
        worker = get_worker()
        key = worker.get_current_task()
    except (ValueError, AttributeError):  # this thread is not one of a Dask worker
        return lambda: False

    def is_released() -> bool:
        wanted = worker.state.tasks.get(key)
        return wanted is None or wanted.state == "cancelled"

    return is_released


def _describe_tracking() -> str:
    return redact_text(strip_credentials(resolve_tracking_uri()))
