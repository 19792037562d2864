"""`rl-training worker`: Prefect's process worker, which lets its flow runs save before it ends.

Prefect's own, told to stop, kills its flow runs at once and leaves them `Running`; it gives up after some minutes
without its server, and kills them then too. This one cancels them as a user does, waits, and only then ends; and it
waits for a server that is away, as training does.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
import psutil  # type: ignore[import-untyped]
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_logger
from prefect.settings import PREFECT_WORKER_HEARTBEAT_SECONDS
from prefect.states import Cancelled, Cancelling
from prefect.workers.process import ProcessWorker

from rl_training.errors import UserError
from rl_training.services.embedded_server import lasting_server
from rl_training.services.prefect_yaml import HEARTBEAT, HEARTBEAT_SECONDS
from rl_training.system.signal_handlers import heeded_signals

logger = get_logger("worker")

POOL = "rl-training"
POLL_SECONDS = 5.0
"""How long a poll that is under way may take, once the worker is told to stop."""
SAVE_SECONDS = 75.0
"""How long flow runs may take to end: to start, where they were about to, then a cancel, with 30 s to save."""
STOP_SECONDS = 25.0
"""How long processes may take to save that are told to stop without the server's help."""
SHIP_SECONDS = 15.0
"""How long what they have left behind may take to bring the last of a run to MLflow."""
CANCELLED = "Its worker was told to stop. A retry goes on from the newest checkpoint."
LABEL = "prefect.worker.name"
"""Of a flow run: the worker that took it last."""


class SavingWorker(ProcessWorker):
    """A process worker that can stop taking flow runs, and does not give up on a server that is away."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.last_taken: frozenset[UUID] = frozenset()
        """What the last poll took; it may not have this worker's label yet."""
        self._takes_runs = True
        self._polling = asyncio.Lock()
        self._is_away = False

    @classmethod
    def __dispatch_key__(cls) -> str:
        """Under this Prefect looks workers up; it has one of the type `process` already."""
        return "rl-training-process"

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Takes what is due."""
        if not self._takes_runs:
            return []
        async with self._polling:
            try:
                taken = await super().get_and_submit_flow_runs()
            except httpx.HTTPError as error:
                self._bear(error)
                return []
            self.last_taken, self._is_away = frozenset(run.id for run in taken), False
            return taken

    async def take_no_more(self) -> None:
        """Returns when no further flow run is taken; a poll that is under way may still take some."""
        self._takes_runs = False
        with suppress(TimeoutError):  # of a server that does not answer it either
            await asyncio.wait_for(self._polling.acquire(), POLL_SECONDS)

    async def sync_with_backend(self) -> None:
        """Sends the worker's heartbeat."""
        try:
            await super().sync_with_backend()
        except httpx.HTTPError as error:
            self._bear(error)

    def _bear(self, error: httpx.HTTPError) -> None:
        """Passes over a server that is away, or in trouble of its own.

        Raises:
            HTTPStatusError: The server refuses the request.
        """
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
            raise error
        if not self._is_away:
            logger.warning("the Prefect server is away; flow runs go on, and this worker waits for it: %s", error)
        self._is_away = True


def run_worker(pool: str = POOL, *, name: str | None = None, limit: int | None = None) -> None:
    """Runs the flow runs of a work pool until SIGTERM, SIGINT or SIGHUP; lets those under way save, and ends.

    Args:
        pool: The work pool.
        name: The worker's; by default one that no other has. Two workers of one name end each other's flow runs.
        limit: Flow runs at a time; by default as many as are due.

    Raises:
        UserError: There is no Prefect server, or it has no such work pool.
    """
    from prefect.exceptions import ObjectNotFound

    os.environ.setdefault(HEARTBEAT, str(HEARTBEAT_SECONDS))
    with lasting_server() as (api_url, client):
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise UserError(f"{api_url} has no work pool {pool!r}; `rl-training deploy` makes it") from None
    asyncio.run(_serve(pool, name, limit))


async def _serve(pool: str, name: str | None, limit: int | None) -> None:
    worker = SavingWorker(
        work_pool_name=pool,
        name=name or f"worker {os.uname().nodename} {os.getpid()} {int(time.time())}",
        limit=limit,
        heartbeat_interval_seconds=int(PREFECT_WORKER_HEARTBEAT_SECONDS.value()),
        create_pool_if_not_found=False,
    )
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in heeded_signals():
        loop.add_signal_handler(number, told.set)  # a second one changes nothing
    serving = asyncio.create_task(worker.start(printer=logger.info))
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        await worker.take_no_more()
        await _let_save(pool, worker.name, worker.last_taken)
    waiting.cancel()
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def _let_save(pool: str, name: str, last_taken: frozenset[UUID]) -> None:
    """Cancels the flow runs of this worker, and returns when they and what they have started have ended."""
    family = psutil.Process().children(recursive=True)
    try:
        async with get_client() as client:
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    await _cancel_and_wait(client, pool, name, last_taken)
            except TimeoutError:
                await _stop_processes()
                for run in await unfinished_runs(client, pool, name, last_taken):
                    logger.warning("flow run %s took too long; it is ended as it is", run.name)
                    await client.set_flow_run_state(run.id, Cancelled(message=CANCELLED), force=True)
    except httpx.HTTPError as error:
        logger.warning("the Prefect server is away (%s): the flow runs' processes are told to stop by us", error)
        await _stop_processes()
    deadline = time.monotonic() + SHIP_SECONDS
    while time.monotonic() < deadline and any(_lives(process) for process in family):
        await asyncio.sleep(0.2)


async def _cancel_and_wait(client: PrefectClient, pool: str, name: str, last_taken: frozenset[UUID]) -> None:
    asked = set()
    while runs := await unfinished_runs(client, pool, name, last_taken):
        for run in runs:
            # What is about to start can't be told to stop before it has.
            if run.state_type == StateType.RUNNING and run.id not in asked:
                asked.add(run.id)
                logger.info("flow run %s is told to save and end", run.name)
                await client.set_flow_run_state(run.id, Cancelling(message=CANCELLED))
        await asyncio.sleep(0.5)


async def unfinished_runs(
    client: PrefectClient, pool: str, name: str, last_taken: frozenset[UUID] = frozenset()
) -> list[FlowRun]:
    """Returns the flow runs of a work pool that a worker has taken and that have not ended."""
    unfinished = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}})
    of_pool = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
    runs = await client.read_flow_runs(flow_run_filter=unfinished, work_pool_filter=of_pool)
    return [run for run in runs if run.labels.get(LABEL, name if run.id in last_taken else None) == name]


async def _stop_processes() -> None:
    """Tells the processes of flow runs to stop without the server's help; training saves, as at a cancel."""
    children = psutil.Process().children()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and any(_lives(child) for child in children):
        await asyncio.sleep(0.2)


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
