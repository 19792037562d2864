"""Sweeps on real clusters of several nodes, of which one is killed: every trial is trained, once, to the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cluster_support import (
    finish_sweep,
    kill_session,
    list_checkpoints,
    make_environment,
    make_sweep,
    require_each_once,
    start_sweep,
    wait_for_shipped_checkpoint,
)
from services_support import BIN, Services
from stack_support import free_ports

from benchmarks.speed.ray_nodes import start_node
from rl_training.tracking.mlflow_store import connect

pytestmark = pytest.mark.services

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def undisturbed(services: Services, store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The table of the sweep, trained by processes of this machine."""
    home = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(store_template, home / "mlflow.db")
    return finish_sweep(
        start_sweep(make_sweep("local"), make_environment(services.environment, home, f"sqlite:///{home}/mlflow.db"))
    )


@pytest.fixture
def tracking_uri(store_template: Path, tmp_path: Path) -> str:
    """A store that all nodes log to."""
    shutil.copy(store_template, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[Any]]]:
    """Programs that are killed at the end, each with its session."""
    programs: list[subprocess.Popen[Any]] = []
    yield programs
    for program in programs:
        kill_session(program.pid)
        program.wait()


def wait_until_gone(process: psutil.Process) -> float:
    """Waits for the end of a trial's process that nobody has killed; returns the time of its end."""
    assert psutil.wait_procs([process], timeout=60)[1] == []
    return time.time()


def test_a_ray_node_that_is_killed_loses_no_trial_and_trains_none_twice(
    services: Services, undisturbed: Any, tracking_uri: str, tmp_path: Path, started: list[Any]
) -> None:
    (port,) = free_ports(1)
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    homes = [tmp_path / name for name in ("head", "first", "second")]
    nodes = [make_environment(services.environment, home, tracking_uri, **secret) for home in homes]
    head, joining = ["--head", "--port", str(port), "--include-dashboard=false"], ["--address", f"127.0.0.1:{port}"]
    for home, node, place in zip(homes, nodes, (head, joining, joining), strict=True):
        started.append(start_node([*place, "--num-cpus", "1"], node, home / "ray.log"))

    driver = make_environment(services.environment, tmp_path / "driver", tracking_uri, **secret)
    sweep = start_sweep(make_sweep({"name": "ray", "address": f"127.0.0.1:{port}"}), driver)
    started.append(sweep)
    client = connect(tracking_uri)
    moved, process = wait_for_shipped_checkpoint(client, homes[1:])
    victim = homes.index(moved.parents[1])
    kill_session(started[victim].pid)
    ended = wait_until_gone(process)

    assert finish_sweep(sweep) == undisturbed
    require_each_once(client, moved, ended)
    assert all(list_checkpoints(home) for home in homes)
    assert not list_checkpoints(tmp_path / "driver")


def test_a_worker_of_a_work_pool_that_is_killed_loses_no_trial_and_trains_none_twice(
    services: Services, undisturbed: Any, tracking_uri: str, tmp_path: Path, started: list[Any]
) -> None:
    entry = {
        "name": "of-two-workers",
        "entrypoint": "rl_training.flows.trial.trial_flow",
        "tags": ["rl-training"],
        "work_pool": {"name": "trials", "job_variables": {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}},
    }
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"pull": [], "deployments": [entry]}))
    deployed = services.rl_training("deploy", "--file", str(tmp_path / "prefect.yaml"))
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        machine = make_environment(services.environment, home, tracking_uri)
        command = [str(BIN / "rl-training"), "worker", "--pool", "trials", "--limit", "2"]
        with (home / "worker.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    ["env", "--default-signal=INT", *command],
                    env=machine,
                    cwd=home,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    driver = make_environment(services.environment, tmp_path / "driver", tracking_uri)
    sweep = start_sweep(make_sweep({"name": "work_pool", "address": "trial-flow/of-two-workers"}), driver)
    started.append(sweep)
    client = connect(tracking_uri)
    moved, process = wait_for_shipped_checkpoint(client, homes)
    victim = started[homes.index(moved.parents[1])]
    flow_runs = [child for child in psutil.Process(victim.pid).children(recursive=True) if is_flow_run(child)]
    assert flow_runs
    victim.kill()
    for flow_run in flow_runs:
        kill_session(os.getsid(flow_run.pid))
    ended = wait_until_gone(process)

    assert finish_sweep(sweep) == undisturbed
    require_each_once(client, moved, ended)
    assert all(list_checkpoints(home) for home in homes)


def is_flow_run(process: psutil.Process) -> bool:
    try:
        return "trial_process" not in " ".join(process.cmdline()) and os.getsid(process.pid) == process.pid
    except psutil.Error:
        return False


def list_addresses(process: psutil.Process) -> set[str]:
    """Returns the addresses on which a process listens."""
    try:
        return {each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
    except psutil.NoSuchProcess:
        return set()


def test_a_worker_of_dask_that_is_killed_loses_no_trial_and_trains_none_twice(
    services: Services, undisturbed: Any, tracking_uri: str, tmp_path: Path, started: list[Any]
) -> None:
    driver = make_environment(services.environment, tmp_path / "driver", tracking_uri)
    sweep = start_sweep(make_sweep("dask"), driver)
    started.append(sweep)
    client = connect(tracking_uri)
    moved, process = wait_for_shipped_checkpoint(client, [tmp_path / "driver"])
    worker = process.parent()
    assert worker is not None
    assert worker.pid != sweep.pid
    family = [psutil.Process(sweep.pid), *psutil.Process(sweep.pid).children(recursive=True)]
    assert {address for each in family for address in list_addresses(each)} == {"127.0.0.1"}
    worker.kill()
    ended = wait_until_gone(process)

    assert finish_sweep(sweep) == undisturbed
    require_each_once(client, moved, ended)
