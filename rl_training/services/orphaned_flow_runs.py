"""Flow runs in the embedded server's database whose process is gone: nobody else will say that they have ended."""

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
"""Beginning of the tag that names the process of a flow run: its machine, number, and when it began."""

LOOKED_AT = 100
"""Flow runs that one sweep looks at, at most."""


def owner_tag() -> str:
    """Returns the tag of the flow runs of this process."""
    process = psutil.Process()
    return f"{OWNER}{socket.gethostname()}/{process.pid}/{process.create_time():.2f}"


def end_abandoned_flow_runs() -> None:
    """Sets to Crashed the flow runs that are Running or Pending, and whose process on this machine is gone.

    To be called where the embedded server is the one that Prefect's client talks to. What goes wrong is said and stops
    nothing: the next start looks again.
    """
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            for run in _unfinished(client):
                if any(_is_gone(tag) for tag in run.tags):
                    _end(client, run)
    except Exception as error:
        logger.warning("looking for flow runs whose processes are gone failed: %s", error)


def _unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter

    unfinished = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}})
    return client.read_flow_runs(flow_run_filter=unfinished, limit=LOOKED_AT)


def _is_gone(tag: str) -> bool:
    """Whether a tag names a process that was on this machine and is no more; another may have its number by now."""
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


def _end(client: SyncPrefectClient, run: FlowRun) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    crashed: State[None] = Crashed(message="The process of this flow run is gone and left no word: it was killed.")
    within = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    unfinished = TaskRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING"]}}})
    for task_run in client.read_task_runs(flow_run_filter=within, task_run_filter=unfinished):
        client.set_task_run_state(task_run.id, crashed, force=True)
    client.set_flow_run_state(run.id, crashed, force=True)
    logger.info("flow run %s, whose process is gone, was set to Crashed", run.name)
