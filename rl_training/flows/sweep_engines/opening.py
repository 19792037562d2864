"""Opens the engine that a sweep's settings name, and checks first that it can be used."""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL

from rl_training.errors import ConfigError, UserError
from rl_training.flows.sweep_engines.polled_engine import Cluster, PolledEngine
from rl_training.sweeps.engines.engine import Engine
from rl_training.sweeps.sweep_config import EngineConfig, ResourcesConfig, SweepConfig

NEEDED = {
    "ray": {"ray": "Ray", "prefect_ray": "prefect-ray"},
    "dask": {"distributed": "Dask", "prefect_dask": "prefect-dask"},
}
"""The packages of each engine, by module; the extra has the engine's name."""
HERE = ("auto", "local", "localhost", "127.0.0.1", "::1")


def require_engine(engine: EngineConfig) -> None:
    """Checks that an engine can be used from here, before anything is started.

    Raises:
        ConfigError: A package that the engine needs is missing, or it takes no address.
        UserError: The nodes could not reach the Prefect server.
    """
    for module, name in NEEDED.get(engine.name, {}).items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"engine {engine.name} needs {name}: pip install 'rl-training[{engine.name}]'")
    if engine.name == "local" and engine.address is not None:
        raise ConfigError(f"engine.address: got {engine.address!r}, and the engine local has no address; leave it out")
    if PREFECT_API_URL.value() is not None:
        return
    if engine.name == "work_pool":
        raise UserError("engine work_pool needs a Prefect server with workers; set PREFECT_API_URL to its address")
    if engine.address is not None and _find_host(engine.address) not in HERE:
        raise UserError(
            f"engine.address: got {engine.address}, whose nodes must reach the Prefect server, and the embedded one "
            f"answers on this machine alone; set PREFECT_API_URL to a server that they reach"
        )


def _find_host(address: str) -> str:
    parts = urlsplit(address if "//" in address else f"//{address}")
    return parts.hostname or address


def open_engine(settings: SweepConfig) -> Engine:
    """Opens the engine of a sweep, for a caller that closes it.

    Raises:
        ConfigError: The engine can't be used with these settings.
        UserError: A cluster or a server can't be reached.
    """
    require_engine(settings.engine)
    return PolledEngine(_open_cluster(settings.engine, settings.resources))


def _open_cluster(engine: EngineConfig, resources: ResourcesConfig) -> Cluster:
    if engine.name == "ray":
        from rl_training.flows.sweep_engines.ray_cluster import RayCluster

        return RayCluster(engine.address, resources)
    if engine.name == "dask":
        from rl_training.flows.sweep_engines.dask_cluster import DaskCluster

        return DaskCluster(engine.address, resources)
    if engine.name == "work_pool":
        from rl_training.flows.sweep_engines.work_pool import WorkPool

        return WorkPool(engine.address, resources)
    from rl_training.flows.sweep_engines.local_cluster import LocalCluster

    return LocalCluster()
