"""`rl-training worker`: runs the flow runs of a work pool until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from contextlib import suppress

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger
from prefect.settings import PREFECT_WORKER_HEARTBEAT_SECONDS

from rl_training.errors import UserError
from rl_training.runs.disk_space import measure_home
from rl_training.services.moved_entrypoints import update_entrypoints
from rl_training.services.prefect_yaml import FILE, HEARTBEAT, HEARTBEAT_SECONDS
from rl_training.services.user_server import connect_to_user_server
from rl_training.services.worker.saving_worker import SavingWorker
from rl_training.services.worker.stopping import stop_flow_runs
from rl_training.system.signal_handlers import stop_signals

logger = get_logger("worker")

POOL = "rl-training"


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
        await stop_flow_runs(pool, worker.name, worker.last_taken)
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
