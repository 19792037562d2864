"""One Prefect server with the deployments and a worker, for the tests in this folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services_support import ENV_SECRET, Services, answers, end, eventually, start


@pytest.fixture(scope="session")
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
            "CASE_TOKEN": ENV_SECRET,
        },
    )
    server = start(services, "server", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    worker = None
    try:
        assert eventually(lambda: answers(services.api_url), 240), (home / "server.log").read_text()
        for arguments in (
            ["work-pool", "create", "--type", "process", "rl-training"],
            ["--no-prompt", "deploy", "--name", "*/default"],  # `deploy --all` is what `rl-training deploy` does
        ):
            done = services.prefect(*arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        _pause_schedules(services)
        worker = start(services, "worker", "worker", "start", "--pool", "rl-training", "--type", "process")
        yield services
    finally:
        for process in filter(None, [worker, server]):
            end(process)


def _pause_schedules(services: Services) -> None:
    """Pauses the deployments' schedules, because a nightly retraining would disturb tests that run at three o'clock."""
    for deployment in services.post("/deployments/filter", {}):
        for schedule in deployment["schedules"]:
            services.patch(f"/deployments/{deployment['id']}/schedules/{schedule['id']}", {"active": False})


@pytest.fixture(scope="session")
def services_client(services: Services) -> Any:
    from rl_training.tracking.mlflow_store import connect

    return connect(f"sqlite:///{services.home}/mlflow.db")
