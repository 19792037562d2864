"""A worker that is killed or whose terminal closes: its flow run continues, or saves, and can be cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from services_support import BIN, REPOSITORY, TINY, Services, eventually, mlflow_run, processes_of

from rl_training.runtime.checkpoint import find_checkpoint

pytestmark = pytest.mark.services

POOL = "of-one-worker"
SLOW = {
    **TINY,
    "env_id": "case_envs:Prints-v0",
    "env_kwargs": {"seconds": 0.002},
    "total_timesteps": 1_000_000,
    "promotion": {"enabled": False},
}


@pytest.fixture(scope="module")
def deployment(services: Services, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A training without an end, in a pool of its own."""
    entry = {
        "name": "endless",
        "entrypoint": "rl_training.flows.train.train_flow",
        "parameters": {"config": "ppo/cartpole", "overrides": SLOW},
        "work_pool": {"name": POOL},
    }
    file = tmp_path_factory.mktemp("project") / "prefect.yaml"
    file.write_text(yaml.safe_dump({"pull": [], "deployments": [entry]}))
    for arguments in (
        ["work-pool", "create", "--type", "process", POOL],
        ["--no-prompt", "deploy", "--prefect-file", str(file), "--all"],
    ):
        done = services.prefect(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    return "train-flow/endless"


@pytest.fixture
def worker(services: Services) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose output nobody reads."""
    process = subprocess.Popen(
        ["env", "--default-signal=INT", str(BIN / "rl-training"), "worker", "--pool", POOL],
        env=services.environment | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])},
        cwd=services.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    yield process
    process.kill()
    process.wait()


def begin(services: Services, deployment: str) -> tuple[str, Path, list[psutil.Process]]:
    """Begins a flow run; returns its id, its run's directory once it trains, and the process that trains."""
    before = services.run_directories()
    flow_run = services.begin(deployment)
    assert eventually(lambda: any(read_steps(path) for path in services.run_directories() - before), 240)
    (run_dir,) = services.run_directories() - before
    trains = [p for p in psutil.process_iter() if is_of(p, flow_run)]
    assert trains
    return flow_run, run_dir, trains


def is_of(process: psutil.Process, flow_run: str) -> bool:
    try:
        return flow_run in process.environ().get("PREFECT__FLOW_RUN_ID", "")
    except psutil.Error:
        return False


def read_steps(run_dir: Path) -> int:
    file = run_dir / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def assert_saved_and_cancelled(
    services: Services, flow_run: str, run_dir: Path, trains: list[psutil.Process], client: Any
) -> None:
    assert eventually(lambda: services.state(flow_run) == "Cancelled", 180), services.state(flow_run)
    assert psutil.wait_procs(trains, timeout=60)[1] == []
    assert eventually(lambda: not processes_of(run_dir), 180)
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["status"], status["stop_reason"]) == ("KILLED", "signal")
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert find_checkpoint(run_dir).num_timesteps >= last["step"]
    assert mlflow_run(client, {"id": flow_run}).info.status == "KILLED"


def test_a_flow_run_whose_worker_was_killed_trains_on_and_can_be_cancelled(
    services: Services, deployment: str, worker: subprocess.Popen[bytes], services_client: Any
) -> None:
    flow_run, run_dir, trains = begin(services, deployment)
    worker.kill()
    worker.wait()
    steps = read_steps(run_dir)
    assert eventually(lambda: read_steps(run_dir) > steps + 20, 180), services.state(flow_run)
    assert services.prefect("flow-run", "cancel", flow_run).returncode == 0
    assert_saved_and_cancelled(services, flow_run, run_dir, trains, services_client)


def test_a_worker_whose_terminal_closes_lets_its_flow_run_save(
    services: Services, deployment: str, worker: subprocess.Popen[bytes], services_client: Any
) -> None:
    flow_run, run_dir, trains = begin(services, deployment)
    os.killpg(worker.pid, signal.SIGHUP)
    assert worker.wait(150) == 0
    listed = services.post(f"/work_pools/{POOL}/workers/filter", {})
    assert not [one["name"] for one in listed if f" {worker.pid} " in one["name"]]  # it has signed off
    assert_saved_and_cancelled(services, flow_run, run_dir, trains, services_client)
