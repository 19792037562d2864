"""Ends the flow runs of a worker: each is cancelled, saves, and has some time to send the rest to MLflow."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from uuid import UUID

import httpx
import psutil  # type: ignore[import-untyped]
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_logger
from prefect.states import Cancelled, Cancelling

logger = get_logger("worker")

SAVE_SECONDS = 75.0
"""Time limit for flow runs to end: those about to start do so first, and a cancel leaves 30 s for saving."""
STOP_SECONDS = 25.0
"""Time limit for saving if processes are told to stop by a signal and not through the server."""
SHIP_SECONDS = 15.0
"""Time limit for the shippers of flow runs to send the rest of a run to MLflow."""
CANCELLED = "The worker was told to stop. A retry resumes from the newest checkpoint."
LABEL = "prefect.worker.name"
"""The label of a flow run that names the worker which took it last."""


async def stop_flow_runs(pool: str, name: str, last_taken: frozenset[UUID]) -> None:
    """Cancels the flow runs of this worker, and returns when their processes have ended."""
    processes = psutil.Process().children(recursive=True)
    try:
        async with get_client() as client:
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    await _cancel_and_wait(client, pool, name, last_taken)
            except TimeoutError:
                await _stop_processes()
                for run in await read_unfinished(client, pool, name, last_taken):
                    logger.warning("flow run %s did not save in time; it is cancelled", run.name)
                    await client.set_flow_run_state(run.id, Cancelled(message=CANCELLED), force=True)
    except httpx.HTTPError as error:
        logger.warning("the Prefect server is away (%s): stopping the processes of flow runs directly", error)
        await _stop_processes()
    deadline = time.monotonic() + SHIP_SECONDS
    while time.monotonic() < deadline and any(_is_alive(process) for process in processes):
        await asyncio.sleep(0.2)


async def _cancel_and_wait(client: PrefectClient, pool: str, name: str, last_taken: frozenset[UUID]) -> None:
    cancelled = set()
    while runs := await read_unfinished(client, pool, name, last_taken):
        for run in runs:
            # A flow run that is about to start can't be cancelled before it runs.
            if run.state_type == StateType.RUNNING and run.id not in cancelled:
                cancelled.add(run.id)
                logger.info("cancelling flow run %s, which saves first", run.name)
                await client.set_flow_run_state(run.id, Cancelling(message=CANCELLED))
        await asyncio.sleep(0.5)


async def read_unfinished(
    client: PrefectClient, pool: str, name: str, last_taken: frozenset[UUID] = frozenset()
) -> list[FlowRun]:
    """Returns the unfinished flow runs of a work pool that a worker has taken."""
    unfinished = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}})
    of_pool = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
    runs = await client.read_flow_runs(flow_run_filter=unfinished, work_pool_filter=of_pool)
    return [run for run in runs if run.labels.get(LABEL, name if run.id in last_taken else None) == name]


async def _stop_processes() -> None:
    """Sends SIGTERM to the processes of flow runs; training saves, as it does when cancelled."""
    children = psutil.Process().children()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and any(_is_alive(child) for child in children):
        await asyncio.sleep(0.2)


def _is_alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
