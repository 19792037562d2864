"""Flow runs in the embedded server's database whose process no longer exists, so that nothing else ends them."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

logger = logging.getLogger(__name__)

OWNER = "process:"
"""Prefix of the tag that identifies the process of a flow run by host name, process id and start time."""

MAX_FLOW_RUNS = 100
"""The largest number of flow runs that is checked at a time."""


def make_owner_tag() -> str:
    """Returns the tag for flow runs of this process."""
    process = psutil.Process()
    return f"{OWNER}{socket.gethostname()}/{process.pid}/{process.create_time():.2f}"


def end_orphaned_flow_runs() -> None:
    """Marks unfinished flow runs as Crashed if their process ran on this machine and no longer exists.

    Call it while Prefect's client is connected to the embedded server. An error is logged and otherwise ignored,
    because the next start checks again.
    """
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            for run in _read_unfinished(client):
                if any(_is_gone(tag) for tag in run.tags):
                    _mark_as_crashed(client, run)
    except Exception as error:
        logger.warning("could not look for flow runs whose processes are gone: %s", error)


def _read_unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter

    unfinished = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}})
    return client.read_flow_runs(flow_run_filter=unfinished, limit=MAX_FLOW_RUNS)


def _is_gone(tag: str) -> bool:
    """Returns whether a tag identifies a process of this machine that no longer exists; its id may be in use again."""
    if not tag.startswith(OWNER):
        return False
    host, pid, created = tag.removeprefix(OWNER).rsplit("/", 2)
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        return bool(process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - float(created)) > 1.0)
    except psutil.NoSuchProcess:
        return True


def _mark_as_crashed(client: SyncPrefectClient, run: FlowRun) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    crashed: State[None] = Crashed(message="The process of this flow run was killed and could not report its end.")
    within = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    unfinished = TaskRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING"]}}})
    for task_run in client.read_task_runs(flow_run_filter=within, task_run_filter=unfinished):
        client.set_task_run_state(task_run.id, crashed, force=True)
    client.set_flow_run_state(run.id, crashed, force=True)
    logger.info("the process of flow run %s is gone: the flow run is marked as Crashed", run.name)
