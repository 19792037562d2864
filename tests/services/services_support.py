"""A Prefect server and worker for tests, and the overrides of a shipped config."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.tiny_tasks import PLAIN

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

COMMAND_SECONDS = 900.0
"""What a command may take on a machine that is busy with other things."""

ENV_SECRET = "CASE-SECRET-ENV-0001"
"""What the workers have as the environment variable CASE_TOKEN."""

TINY = {**PLAIN, "experiment": "deployed"}
"""Laid over ppo/cartpole, which the deployment names."""

FEWER_STEPS = {"total_timesteps: 30_000": "total_timesteps: 2_000", "every: 10_000": "every: 1_000"}
"""What tests change in the config of a new project, to be quick."""


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
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )

    def rl_training(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs an `rl-training` command as a user does."""
        command = [str(BIN / "rl-training"), *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def begin(self, deployment: str, **parameters: Any) -> str:
        """Has a deployment run, and returns the flow run's id."""
        options = [text for name, value in parameters.items() for text in ("--param", f"{name}={json.dumps(value)}")]
        created = self.prefect("deployment", "run", deployment, *options, cwd=self.home)
        assert created.returncode == 0, created.stdout + created.stderr
        return flow_run_id(created.stdout)

    def state(self, flow_run_id: str) -> str:
        return str(self.get(f"/flow_runs/{flow_run_id}")["state"]["name"])

    def run(self, deployment: str, **parameters: Any) -> dict[str, Any]:
        """Runs a deployment to its end, and returns the flow run."""
        options = [text for name, value in parameters.items() for text in ("--param", f"{name}={json.dumps(value)}")]
        watched = ["--watch", "--watch-interval", "1"]
        done = self.prefect("deployment", "run", deployment, *options, *watched, cwd=self.home)
        flow_run: dict[str, Any] = self.get(f"/flow_runs/{flow_run_id(done.stdout)}")
        assert (done.returncode == 0) == (flow_run["state"]["type"] == "COMPLETED"), done.stdout + done.stderr
        return flow_run

    def get(self, path: str) -> Any:
        return self.ask(urllib.request.Request(self.api_url + path))

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        headers = {"Content-Type": "application/json"}
        return self.ask(urllib.request.Request(self.api_url + path, json.dumps(body).encode(), headers, method=method))

    def ask(self, request: urllib.request.Request) -> Any:
        """Asks the server; again where it is busy, as Prefect's own client does."""
        if login := self.environment.get("PREFECT_API_AUTH_STRING"):
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        certificate = self.environment.get("PREFECT_API_SSL_CERT_FILE")
        context = ssl.create_default_context(cafile=certificate) if certificate else None
        for _ in range(20):
            try:
                with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(1.0)
        raise AssertionError(f"{request.full_url}: the server stays busy")

    def patch(self, path: str, body: dict[str, Any]) -> None:
        self.post(path, body, "PATCH")

    def run_directories(self) -> set[Path]:
        return set((self.home / "runs").glob("*"))


def flow_run_id(said: str) -> str:
    """Returns the id of the flow run from the output of `prefect deployment run`."""
    found = re.search(r"UUID: ([0-9a-f-]{36})", said)
    assert found, said
    return found[1]


def start(services: Services, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a `prefect` program."""
    return start_program(services, name, BIN / "prefect", *arguments)


def start_program(services: Services, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
    """Starts a program; with SIGINT at its default, which a shell's background job has not."""
    with (services.home / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["env", "--default-signal=INT", *map(str, command)],
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


def inherited() -> dict[str, str]:
    """Returns this process's environment without the variables of Prefect, MLflow, PostgreSQL and rl_training."""
    others = ("PREFECT_", "MLFLOW_", "PG", "RL_TRAINING_")
    return {name: value for name, value in os.environ.items() if not name.startswith(others)}


def read_logins(secrets: Path) -> dict[str, str]:
    """Returns the variables with which a client of the services logs in."""
    return {
        "MLFLOW_TRACKING_USERNAME": "owner",
        "MLFLOW_TRACKING_PASSWORD": (secrets / "mlflow_password").read_text(),
        "PREFECT_API_AUTH_STRING": (secrets / "prefect_login").read_text(),
    }


def listens(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def eventually(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return value


def mlflow_run(client: Any, flow_run: dict[str, Any]) -> Any:
    """The one MLflow run of a flow run, once it is there."""
    experiment = eventually(lambda: client.get_experiment_by_name("deployed"), 180).experiment_id
    wanted = f"tags.`prefect.flow_run_id` = '{flow_run['id']}'"
    (run,) = eventually(lambda: client.search_runs([experiment], wanted), 180)
    return run


def processes_of(run_dir: Path) -> list[int]:
    """Processes that have the run's directory on their command line: the shipper."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(run_dir) in (p.info["cmdline"] or [])]
