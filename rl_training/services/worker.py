"""`rl-training worker`: a Prefect process worker that lets its flow runs save before it ends.

When Prefect's own process worker is told to stop, it kills its flow runs at once and leaves them `Running`. It also
kills them if its server is away for some minutes. This worker cancels its flow runs as a user would, waits until they
have saved, and then ends. It waits for a server that is away.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil  # type: ignore[import-untyped]
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger
from prefect.settings import PREFECT_WORKER_HEARTBEAT_SECONDS
from prefect.states import Cancelled, Cancelling
from prefect.workers.process import ProcessWorker

from rl_training.errors import UserError
from rl_training.runs.disk_space import measure_home
from rl_training.services.crash_automations import announce_low_disk
from rl_training.services.moved_entrypoints import update_entrypoints
from rl_training.services.prefect_yaml import FILE, HEARTBEAT, HEARTBEAT_SECONDS
from rl_training.services.user_server import connect_to_user_server
from rl_training.system.signal_handlers import stop_signals

logger = get_logger("worker")

POOL = "rl-training"
POLL_SECONDS = 5.0
"""Time limit for a poll that is under way when the worker is told to stop."""
SAVE_SECONDS = 75.0
"""Time limit for flow runs to end: those about to start do so first, and a cancel leaves 30 s for saving."""
STOP_SECONDS = 25.0
"""Time limit for saving if processes are told to stop by a signal and not through the server."""
SHIP_SECONDS = 15.0
"""Time limit for the shippers of flow runs to send the rest of a run to MLflow."""
CANCELLED = "The worker was told to stop. A retry resumes from the newest checkpoint."
NEVER = datetime.min.replace(tzinfo=UTC)
LABEL = "prefect.worker.name"
"""The label of a flow run that names the worker which took it last."""


class NewestFirst:
    """Has the newest of a deployment's missed flow runs start first.

    When there was no worker for some time, the server has a flow run for each time at which one was due. The first one
    that starts makes the others needless: the deployment's limit cancels those that are taken while it runs, and later
    ones skip themselves. So a poll passes on the newest alone, and the next polls the others.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[UUID | None, str], datetime] = {}

    def arrange(self, responses: Sequence[WorkerFlowRunResponse]) -> list[WorkerFlowRunResponse]:
        """Returns the flow runs to start now, of those that are due; flow runs by hand keep their places."""
        groups: dict[tuple[UUID | None, str], list[WorkerFlowRunResponse]] = {}
        for response in responses:
            if response.flow_run.auto_scheduled:
                groups.setdefault(_identify(response.flow_run), []).append(response)
        for identity, group in groups.items():
            group.sort(key=lambda response: _get_due(response.flow_run))
            newest = _get_due(group[-1].flow_run)
            if newest > self._newest.get(identity, NEVER):
                self._newest[identity] = newest
                del group[:-1]
        arranged = []
        for response in responses:
            if not response.flow_run.auto_scheduled:
                arranged.append(response)
            elif group := groups[_identify(response.flow_run)]:
                arranged.append(group.pop())
        return arranged


def _identify(run: FlowRun) -> tuple[UUID | None, str]:
    """Returns what two flow runs have in common if one can replace the other."""
    return run.deployment_id, json.dumps(run.parameters, sort_keys=True, default=str)


def _get_due(run: FlowRun) -> datetime:
    return run.expected_start_time or NEVER


class SavingWorker(ProcessWorker):
    """A process worker that can stop taking flow runs, and that waits for a server that is away."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.last_taken: frozenset[UUID] = frozenset()
        """The flow runs that the last poll took; they may not have this worker's label yet."""
        self._newest_first = NewestFirst()
        self._takes_runs = True
        self._polling = asyncio.Lock()
        self._is_away = self._disk_is_low = False

    @classmethod
    def __dispatch_key__(cls) -> str:
        """Returns the type by which Prefect registers the worker; the type `process` is taken by its own."""
        return "rl-training-process"

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Takes the flow runs that are due."""
        if not self._takes_runs:
            return []
        async with self._polling:
            try:
                taken = await super().get_and_submit_flow_runs()
            except httpx.HTTPError as error:
                self._tolerate(error)
                return []
            self.last_taken, self._is_away = frozenset(run.id for run in taken), False
            return taken

    async def _get_scheduled_flow_runs(self) -> list[WorkerFlowRunResponse]:
        """Returns the flow runs that are due, in the order in which they start; Prefect's worker submits them."""
        return self._newest_first.arrange(await super()._get_scheduled_flow_runs())

    async def run(self, flow_run: FlowRun, configuration: Any, task_status: Any = None) -> Any:
        """Runs a flow run, in the folder of the project in which the worker was started if there is one.

        So relative paths of configs are found, and the server needs no absolute path. Nothing is imported from that
        folder: a project's package is installed. Other flow runs get an empty folder, as Prefect does it.
        """
        if configuration.working_dir is None and (Path.cwd() / FILE).is_file():
            configuration.working_dir = Path.cwd()
            configuration.env = {**configuration.env, "PYTHONSAFEPATH": "1"}
        return await super().run(flow_run, configuration, task_status)

    async def stop_taking(self) -> None:
        """Stops taking flow runs; a poll that is under way may still take some before this returns."""
        self._takes_runs = False
        with suppress(TimeoutError):  # the server does not answer the poll
            await asyncio.wait_for(self._polling.acquire(), POLL_SECONDS)

    async def sync_with_backend(self) -> None:
        """Sends the worker's heartbeat, and an event when the disk fills up."""
        try:
            await super().sync_with_backend()
        except httpx.HTTPError as error:
            self._tolerate(error)
        else:
            self._watch_disk()

    def _watch_disk(self) -> None:
        disk = measure_home()
        if disk.is_low and not self._disk_is_low and self._work_pool is not None:
            logger.warning("only %s; make room, for example with `rl-training clean`", disk)
            announce_low_disk(disk, self.name, self._work_pool)
        self._disk_is_low = disk.is_low

    def _tolerate(self, error: httpx.HTTPError) -> None:
        """Ignores an error that means that the server is away or has failed, and logs the first one.

        Raises:
            HTTPStatusError: The server refuses the request.
        """
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
            raise error
        if not self._is_away:
            logger.warning("the Prefect server is away; flow runs continue, and this worker waits for it: %s", error)
        self._is_away = True


def run_worker(
    pool: str = POOL, *, queues: Collection[str] = (), name: str | None = None, limit: int | None = None
) -> None:
    """Runs the flow runs of a work pool until SIGTERM, SIGINT or SIGHUP, then lets those under way save and ends.

    Args:
        pool: The work pool.
        queues: The queues of the pool whose flow runs it takes; all of them if none is given.
        name: The worker's name; unique by default. Two workers of the same name would end each other's flow runs.
        limit: The largest number of flow runs at a time; by default there is no limit.

    Raises:
        UserError: There is no Prefect server, or it has no such work pool or queue.
    """
    measure_home()  # raises if the variable is wrong
    os.environ.setdefault(HEARTBEAT, str(HEARTBEAT_SECONDS))
    with connect_to_user_server() as (api_url, client):
        try:
            client.read_work_pool(pool)
            known = {queue.name for queue in client.read_work_queues(work_pool_name=pool)}
        except ObjectNotFound:
            raise UserError(f"{api_url} has no work pool {pool!r}; `rl-training deploy` creates it") from None
        if unknown := sorted(set(queues) - known):
            raise UserError(
                f"the work pool {pool!r} has no queue {unknown[0]!r}, only {', '.join(sorted(known))}; a deployment "
                f"that names it (work_pool.work_queue_name in {FILE}) creates it"
            )
        update_entrypoints(client)
    asyncio.run(_run_until_stopped(pool, queues, name, limit))


async def _run_until_stopped(pool: str, queues: Collection[str], name: str | None, limit: int | None) -> None:
    worker = SavingWorker(
        work_pool_name=pool,
        work_queues=list(queues),
        name=name or f"worker {os.uname().nodename} {os.getpid()} {int(time.time())}",
        limit=limit,
        heartbeat_interval_seconds=int(PREFECT_WORKER_HEARTBEAT_SECONDS.value()),
        create_pool_if_not_found=False,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)  # further signals change nothing
    serving = asyncio.create_task(worker.start(printer=logger.info))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        await worker.stop_taking()
        await _stop_flow_runs(pool, worker.name, worker.last_taken)
    waiting.cancel()
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    await _sign_off(pool, worker.name)


async def _sign_off(pool: str, name: str) -> None:
    """Removes the worker from its pool's list, so that nobody takes a worker that has ended for one that has died."""
    place = {"work_pool_name": pool, "name": name}
    with suppress(httpx.HTTPError, ObjectNotFound):  # the server is away, or has no such worker
        async with get_client() as client:
            await client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=place)


async def _stop_flow_runs(pool: str, name: str, last_taken: frozenset[UUID]) -> None:
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
