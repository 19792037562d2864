"""Segments on a Ray cluster, by `prefect-ray`: an existing cluster, or one of this machine on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.errors import ConfigError
from rl_training.flows.sweep_engines.segment_task import run_segment
from rl_training.flows.sweep_engines.task_runner_cluster import Handle, TaskRunnerCluster
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.engines.local import list_cpus
from rl_training.sweeps.sweep_config import ResourcesConfig
from rl_training.system.ray_cluster import connect_to_ray, leave_ray

GIGABYTE = 10**9


class RayCluster(TaskRunnerCluster):
    """A Ray cluster; Ray puts a segment on a node that has the CPUs, GPUs and memory that it needs.

    Ray itself tries nothing again: the sweep does, so that it knows about each loss.

    Args:
        address: The cluster's address, or None to start one on this machine.
        resources: What each segment needs.

    Raises:
        ConfigError: No node has what a segment needs, so that it would wait for ever.
        UserError: The cluster can't be reached.
    """

    def __init__(self, address: str | None, resources: ResourcesConfig) -> None:
        from prefect_ray import RayTaskRunner

        self._ray = connect_to_ray("engine ray", len(list_cpus()), address)
        try:
            _require_node(self._ray.nodes(), resources)
            self._runner: Any = RayTaskRunner(address=address)  # it finds that this process is connected
            self._runner.__enter__()
        except BaseException:
            leave_ray(self._ray)
            raise

    def _submit(self, segment: Segment, parameters: dict[str, Any]) -> Handle:
        from prefect_ray.context import remote_options

        memory = {} if segment.memory_gb is None else {"memory": int(segment.memory_gb * GIGABYTE)}
        with remote_options(num_cpus=segment.cpus, num_gpus=segment.gpus, max_retries=0, **memory):
            future: Handle = self._runner.submit(run_segment, parameters)
        return future

    def stop(self, handles: Sequence[Any]) -> None:
        """Interrupts the tasks, which lets their processes save."""
        for future in handles:
            self._ray.cancel(future.wrapped_future, force=False)

    def close(self) -> None:
        """Leaves the cluster; one that was started for the sweep ends."""
        self._runner.__exit__(None, None, None)
        leave_ray(self._ray)


def _require_node(nodes: Sequence[dict[str, Any]], resources: ResourcesConfig) -> None:
    need = {"CPU": float(resources.cpus), "GPU": resources.gpus, "memory": (resources.memory_gb or 0.0) * GIGABYTE}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(all(node.get(name, 0.0) >= number for name, number in need.items()) for node in alive):
        found = "; ".join(
            f"{node.get('CPU', 0.0):g} CPUs, {node.get('GPU', 0.0):g} GPUs, {node.get('memory', 0.0) / GIGABYTE:.1f} GB"
            for node in alive
        )
        raise ConfigError(
            f"resources: no node of the Ray cluster has {resources.cpus} CPUs, {resources.gpus:g} GPUs and "
            f"{resources.memory_gb or 0:g} GB for a trial; its nodes have {found}"
        )
