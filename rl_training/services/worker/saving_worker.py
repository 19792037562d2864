"""A Prefect process worker that lets its flow runs save before it ends, and that waits for a server that is away.

When Prefect's own process worker is told to stop, it kills its flow runs at once and leaves them `Running`. It also
kills them if its server is away for some minutes. This one stops taking flow runs first; `run_worker` then cancels
those under way as a user would, and waits until they have saved.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.logging import get_logger
from prefect.settings import PREFECT_CLIENT_METRICS_ENABLED
from prefect.workers.process import ProcessWorker

from rl_training.runs.disk_space import measure_home
from rl_training.services.crash_automations import announce_low_disk
from rl_training.services.prefect_yaml import FILE
from rl_training.services.worker.newest_first import NewestFirst

logger = get_logger("worker")

POLL_SECONDS = 5.0
"""Time limit for a poll that is under way when the worker is told to stop."""


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

        So relative paths of configs are found, and the server needs no absolute path. Prefect puts that folder on the
        path of modules. Other flow runs get an empty folder, as Prefect does it.
        """
        # Each process with the setting would open the port, which the worker has.
        configuration.env = {**configuration.env, PREFECT_CLIENT_METRICS_ENABLED.name: "false"}
        if configuration.working_dir is None and (Path.cwd() / FILE).is_file():
            configuration.working_dir = Path.cwd()
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
            logger.warning(
                "only %s; make room, for example with `rl-training clean`; `rl-training doctor` says more", disk
            )
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
