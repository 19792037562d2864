"""Segments on a Dask cluster, by `prefect-dask`: an existing cluster, or one of this machine on loopback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rl_training.errors import ConfigError, UserError, one_line
from rl_training.flows.sweep_engines.segment_task import admit_segments, run_segment, stop_segments
from rl_training.flows.sweep_engines.task_runner_cluster import Handle, TaskRunnerCluster
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.engines.local import list_cpus
from rl_training.sweeps.sweep_config import ResourcesConfig


class DaskCluster(TaskRunnerCluster):
    """A Dask cluster, in which each thread of a worker runs one segment at a time.

    A segment that needs more than one CPU, a GPU or memory goes to workers that declare as much: `dask worker
    --resources "cpus=8 gpus=1 memory_gb=32"`. The cluster of this machine has a worker for each segment that fits, and
    encrypts its connections, because other users of the machine can reach loopback.

    Args:
        address: The scheduler's address, or None to start a cluster on this machine.
        resources: What each segment needs.

    Raises:
        ConfigError: No worker declares what a segment needs, so that it would wait for ever.
        UserError: The cluster can't be reached.
    """

    def __init__(self, address: str | None, resources: ResourcesConfig) -> None:
        from prefect_dask import DaskTaskRunner

        logging.getLogger("distributed").setLevel(logging.ERROR)
        self._needs = _list_needs(resources)
        self._admitted: set[str] = set()
        with ExitStack() as stack:
            if address is None:
                runner = DaskTaskRunner(cluster=stack.enter_context(_start_cluster(resources, self._needs)))
            else:
                runner = DaskTaskRunner(address=address, client_kwargs={"timeout": 30})
            stack.enter_context(runner)
            try:
                self._client: Any = runner.client
            except (OSError, TimeoutError, ValueError) as error:
                raise UserError(f"engine dask: the scheduler at {address} does not answer: {one_line(error)}") from None
            _require_worker(self._client.scheduler_info(n_workers=-1)["workers"].values(), self._needs)
            self._opened = stack.pop_all()

    def _submit(self, segment: Segment, parameters: dict[str, Any]) -> Handle:
        from prefect_dask.task_runners import PrefectDaskFuture

        if segment.sweep_uid not in self._admitted:
            self._client.run(admit_segments, segment.sweep_uid)
            self._admitted.add(segment.sweep_uid)
        # As the runner's `submit`, which does not pass resources on.
        future = self._client.submit(
            run_segment, parameters=parameters, return_type="state", resources=self._needs, retries=0
        )
        wrapped: Handle = PrefectDaskFuture(wrapped_future=future, task_run_id=future.task_run_id)
        return wrapped

    def stop(self, handles: Sequence[Any]) -> None:
        """Lets the segments on all workers save; Dask does not interrupt a task that runs."""
        for uid in self._admitted:
            self._client.run(stop_segments, uid)

    def close(self) -> None:
        """Leaves the cluster; one that was started for the sweep ends."""
        self._opened.close()


def _start_cluster(resources: ResourcesConfig, needs: Mapping[str, float]) -> Any:
    import dask
    from distributed import LocalCluster

    # A segment whose worker has died goes back to the sweep at once, and none waits at a worker that is busy.
    dask.config.set({"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-saturation": 1.0})
    return LocalCluster(
        n_workers=max(1, len(list_cpus()) // resources.cpus),
        threads_per_worker=1,
        host="127.0.0.1",
        security=True,
        dashboard_address=None,
        scheduler_kwargs={"dashboard": False},
        memory_limit=None,
        resources=dict(needs) or None,
        silence_logs=logging.ERROR,
    )


def _list_needs(resources: ResourcesConfig) -> dict[str, float]:
    """Returns what a worker must declare: nothing for a segment that needs no more than a CPU."""
    needs = {"cpus": float(resources.cpus)} if resources.cpus > 1 else {}
    needs |= {"gpus": resources.gpus} if resources.gpus else {}
    return needs | ({"memory_gb": resources.memory_gb} if resources.memory_gb is not None else {})


def _require_worker(workers: Any, needs: Mapping[str, float]) -> None:
    declared = [worker.get("resources") or {} for worker in workers]
    if needs and not any(all(each.get(name, 0.0) >= need for name, need in needs.items()) for each in declared):
        wanted = " ".join(f"{name}={need:g}" for name, need in needs.items())
        raise ConfigError(
            f"resources: no worker of the Dask cluster declares what a trial needs; start workers with at least "
            f'--resources "{wanted}" (got {declared})'
        )
