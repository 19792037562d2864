"""A project outside the clone, on servers of which its worker knows the addresses alone: the commands of its page."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow_server import Server, free_port
from services_support import (
    BIN,
    FEWER_STEPS,
    REPOSITORY,
    Services,
    answers,
    end,
    eventually,
    inherited,
    start,
    start_program,
)

from docs.run_blocks import read_commands
from rl_training.project.new_project import init
from rl_training.tracking.mlflow_store import connect

pytestmark = pytest.mark.services

PAGE = REPOSITORY / "docs" / "how-to" / "own-project.md"


@pytest.fixture
def servers(tmp_path: Path, store_template: Path) -> Iterator[Services]:
    """A Prefect server and an MLflow server, as seen by a user with a home of their own."""
    for name in ("user", "mlflow", "worker"):
        (tmp_path / name).mkdir()
    shutil.copy(store_template, tmp_path / "mlflow" / "mlflow.db")
    port, mlflow = free_port(), Server(tmp_path / "mlflow")
    own = {
        "HOME": str(tmp_path / "user"),
        "PREFECT_HOME": str(tmp_path / "user" / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_TRACKING_URI": mlflow.uri,
        "RL_TRAINING_HOME": str(tmp_path / "user"),
        "PREFECT_SERVER_METRICS_ENABLED": "true",
        "COLUMNS": "200",
    }
    there = Services(own["PREFECT_API_URL"], tmp_path / "user", inherited() | own)
    server = start(there, "server", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    mlflow.start()
    try:
        assert eventually(lambda: answers(there.api_url), 240), (there.home / "server.log").read_text()
        yield there
    finally:
        end(server)
        mlflow.stop()


def read_ended(services: Services, deployment: str, count: int) -> list[tuple[str, str]]:
    """When each flow run of a deployment was due and how it ended, once so many have ended."""
    of = {"deployments": {"id": {"any_": [deployment]}}}
    ended = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "CANCELLED", "FAILED", "CRASHED"]}}}}
    found = services.post("/flow_runs/filter", of | ended)
    return [(run["expected_start_time"], run["state"]["name"]) for run in found] if len(found) == count else []


def test_a_project_is_deployed_and_trained_by_a_worker_that_has_its_package(servers: Services, tmp_path: Path) -> None:
    folder = tmp_path / "my-robot"
    init(folder)
    config = folder / "configs" / "tank.yaml"
    text = config.read_text()
    for old, new in FEWER_STEPS.items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    deploy, work, run = read_commands(PAGE, "services-test")
    assert (deploy, work) == ("rl-training deploy", "rl-training worker")

    in_folder = replace(servers, home=folder)
    done = in_folder.rl_training(*deploy.split()[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    nightly_id = servers.get("/deployments/name/retrain-flow/tank")["id"]
    begin = datetime.now(UTC) - timedelta(days=4)
    body = {"start_time": begin.isoformat(), "min_runs": 3, "max_runs": 3}
    servers.post(f"/deployments/{nightly_id}/schedule", body)  # what nobody took while there was no worker
    # Another home, and the package installed: the worker shares no file with the user but the project.
    installed = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"RL_TRAINING_HOME": str(tmp_path / "worker"), "HOME": str(tmp_path / "worker"), "PYTHONPATH": installed}
    port = free_port()
    own |= {"PREFECT_CLIENT_METRICS_ENABLED": "true", "PREFECT_CLIENT_METRICS_PORT": str(port)}
    elsewhere = replace(in_folder, environment=servers.environment | own)
    worker = start_program(elsewhere, "worker", BIN / "rl-training", *work.split()[1:])
    try:
        missed = eventually(lambda: read_ended(servers, nightly_id, 3), 600)
        assert [state for _, state in sorted(missed)][-1] == "Completed", missed
        assert {state for _, state in sorted(missed)[:-1]} <= {"Cancelled", "Skipped"}, missed
        nightly = run.replace("train-flow/", "retrain-flow/")
        for command in (run, nightly):
            done = in_folder.prefect(*(word.strip("'") for word in command.split()[1:]), cwd=folder)
            assert done.returncode == 0, done.stdout + done.stderr + (folder / "worker.log").read_text()[-3_000:]
        for address in (f"{servers.api_url}/metrics", f"http://127.0.0.1:{port}/metrics"):
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert "# TYPE process_cpu_seconds_total counter" in answer.read().decode()
    finally:
        end(worker)

    client = connect(servers.environment["MLFLOW_TRACKING_URI"])
    versions = client.search_model_versions("name = 'my_robot'")
    assert len(versions) == 3
    assert client.get_model_version_by_alias("my_robot", "champion").version in {each.version for each in versions}
    assert list((tmp_path / "worker" / "runs").glob("*"))
    assert not (tmp_path / "user" / "runs").exists()
    schedules = servers.get("/deployments/name/retrain-flow/tank")["schedules"]
    assert [(each["schedule"]["cron"], each["active"]) for each in schedules] == [("0 3 * * *", True)]
