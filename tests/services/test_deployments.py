"""prefect.yaml deployed to a real Prefect server, and its deployments run by a real process worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.services

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

TINY = {
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 2_000,
    "num_envs": 2,
    "rollout_steps": 50,
    "batch_size": 50,
    "learning_rate": 0.01,
    "evaluation": {"every": 500, "episodes": 3, "final_episodes": 20},
    "promotion": {"model": "plain", "floor": 5.0, "episodes": 20},
    "experiment": "deployed",
}
"""Laid over ppo/cartpole, which the deployment names."""


@dataclass(frozen=True)
class Services:
    """A server with the deployments, and a worker."""

    api_url: str
    home: Path
    environment: dict[str, str]

    def prefect(self, *arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
        """Runs a `prefect` command as a user does."""
        command = [str(BIN / "prefect"), *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=180, check=False
        )

    def run(self, deployment: str, **parameters: Any) -> dict[str, Any]:
        """Runs a deployment to its end, and returns the flow run."""
        options = [text for name, value in parameters.items() for text in ("--param", f"{name}={json.dumps(value)}")]
        watched = ["--watch", "--watch-interval", "1"]
        done = self.prefect("deployment", "run", deployment, *options, *watched, cwd=self.home)
        flow_run = self.newest_flow_run()
        assert (done.returncode == 0) == (flow_run["state"]["type"] == "COMPLETED"), done.stdout + done.stderr
        return flow_run

    def newest_flow_run(self) -> dict[str, Any]:
        newest: dict[str, Any] = self.post("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
        return newest

    def post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.api_url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run_directories(self) -> set[Path]:
        return set((self.home / "runs").glob("*"))


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, store_template: Path) -> Iterator[Services]:
    home = tmp_path_factory.mktemp("services")
    shutil.copy(store_template, home / "mlflow.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    services = Services(
        f"http://127.0.0.1:{port}/api",
        home,
        inherited
        | {
            "HOME": str(home),
            "PREFECT_HOME": str(home / "prefect_home"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "DO_NOT_TRACK": "1",
            "RL_TRAINING_HOME": str(home),
            "COLUMNS": "200",
        },
    )
    server = start(services, "server", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    worker = None
    try:
        assert eventually(lambda: answers(services.api_url), 240), (home / "server.log").read_text()
        for arguments in (
            ["work-pool", "create", "--type", "process", "rl-training"],
            ["--no-prompt", "deploy", "--all"],
        ):
            done = services.prefect(*arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        worker = start(services, "worker", "worker", "start", "--pool", "rl-training", "--type", "process")
        yield services
    finally:
        for process in filter(None, [worker, server]):
            end(process)


def start(services: Services, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a `prefect` program; with SIGINT at its default, which a shell's background job has not."""
    with (services.home / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["env", "--default-signal=INT", str(BIN / "prefect"), *arguments],
            env=services.environment,
            cwd=services.home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and what it has started."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(family, timeout=5)
    for child in left:
        child.kill()


def answers(api_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def eventually(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return value


@pytest.fixture(scope="module")
def client(services: Services) -> Any:
    from rl_training.tracking.store import connect

    return connect(f"sqlite:///{services.home}/mlflow.db")


def mlflow_run(client: Any, flow_run: dict[str, Any]) -> Any:
    """The one MLflow run of a flow run."""
    experiment = client.get_experiment_by_name("deployed").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`prefect.flow_run_id` = '{flow_run['id']}'")
    return run


@pytest.fixture(scope="module")
def trained(services: Services) -> dict[str, Any]:
    """The flow run of train-flow/default."""
    return services.run("train-flow/default", overrides=TINY)


def test_train_flow_is_run_by_a_worker_tracked_and_promoted(trained: dict[str, Any], client: Any) -> None:
    assert trained["state"]["name"] == "Completed"
    run = mlflow_run(client, trained)
    assert run.info.status == "FINISHED"
    assert run.data.tags["prefect.deployment"] == "train-flow/default"
    assert run.data.metrics["heldout/return_mean"] == 10.0
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "eval/return_mean")]
    assert sorted(steps) == [500, 1_000, 1_500, 2_000]
    assert client.get_model_version_by_alias("plain", "champion").run_id == run.info.run_id


def test_resume_flow_trains_on_from_the_mlflow_run(services: Services, trained: dict[str, Any], client: Any) -> None:
    source = mlflow_run(client, trained).info.run_id
    resumed = services.run("resume-flow/default", source=source, overrides={"total_timesteps": 2_500})
    assert resumed["state"]["name"] == "Completed"
    run = mlflow_run(client, resumed)
    assert run.info.run_id != source
    assert run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "eval/return_mean")] == [2_500]


def test_a_typo_fails_the_flow_run_and_trains_nothing(services: Services, trained: dict[str, Any]) -> None:
    before = services.run_directories()
    failed = services.run("train-flow/default", overrides={"learing_rate": 1e-4, "evaluation": {"evry": 500}})
    assert failed["state"]["name"] == "Failed"
    assert "did you mean learning_rate?" in failed["state"]["message"]
    assert "evaluation.evry" in failed["state"]["message"]
    assert services.run_directories() == before
    assert services.prefect("deployment", "run", "train-flow/default", "--param", "lerning=3").returncode == 1


def test_a_cancelled_flow_run_saves_and_ends_as_cancelled(
    services: Services, trained: dict[str, Any], client: Any
) -> None:
    before = services.run_directories()
    overrides = {**TINY, "total_timesteps": 10_000_000, "checkpoint": {"every": 1_000}}
    created = services.prefect(
        "deployment", "run", "train-flow/default", "--param", f"overrides={json.dumps(overrides)}"
    )
    assert created.returncode == 0, created.stdout + created.stderr
    (run_dir,) = eventually(lambda: services.run_directories() - before, 60)
    assert eventually(lambda: list(run_dir.glob("checkpoints/step_*[1-9]*/manifest.json")), 60)
    flow_run = services.newest_flow_run()
    assert services.prefect("flow-run", "cancel", flow_run["id"]).returncode == 0
    assert eventually(lambda: services.newest_flow_run()["state"]["name"] == "Cancelled", 60)
    run = mlflow_run(client, flow_run)
    assert eventually(lambda: client.get_run(run.info.run_id).info.status == "KILLED", 30)
    newest = max(run_dir.glob("checkpoints/step_*"))
    assert eventually(lambda: not workers_of(run_dir), 15)
    time.sleep(1.0)
    assert max(run_dir.glob("checkpoints/step_*")) == newest  # nothing trains on


def workers_of(run_dir: Path) -> list[int]:
    """Processes that have the run's directory on their command line: the shipper."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(run_dir) in (p.info["cmdline"] or [])]
