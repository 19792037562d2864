"""A stack of version 0.1.0 is restored and upgraded, and its stopped run resumes to the bytes that 0.1.0 came to.

`tests/golden/stack_0_1_0.tar.xz` holds a backup of both servers' SQLite files and the artifacts, made by the code of
commit 7ab246c: a champion, a run that SIGTERM stopped, and a deployment with a schedule.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from mlflow_server import Server
from services_support import BIN, Services, answers, end, eventually, inherited, start

from rl_training.maintenance.backup import restore
from rl_training.tracking.checkpoint_sources import download_checkpoint

pytestmark = pytest.mark.services

GOLDEN = Path(__file__).parents[1] / "golden" / "stack_0_1_0.tar.xz"
KERNELS = {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2"}
"""The kernels with which 0.1.0 trained; others, as of processors with longer vectors, differ in the last bits."""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The restored and upgraded stack; this process has the environment of its servers."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "new"
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{folder}/prefect.db")
    monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", str(folder / "served"))
    monkeypatch.setenv("PREFECT_HOME", str(folder / "prefect_home"))
    restore(tmp_path / "stack_0_1_0")
    commands = [
        ["mlflow", "db", "upgrade", os.environ["MLFLOW_BACKEND_STORE_URI"]],
        ["prefect", "server", "database", "upgrade", "--yes"],
    ]
    for command in commands:
        done = subprocess.run([sys.executable, "-P", "-m", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_champion_of_0_1_0_loads_and_its_stopped_run_resumes_exactly(
    stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads((tmp_path / "expected.json").read_text())
    server = Server(stack)
    server.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        champion = download_checkpoint("models:/kept@champion", wanted="policy")
        assert champion.policy_sha256 == expected["champion_policy"]
        command = [sys.executable, "-P", "-m", "rl_training", "resume", expected["stopped_run"], "--json"]
        done = subprocess.run(command, env=os.environ | KERNELS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        resumed = json.loads(done.stdout)
        assert resumed["run_id"] == expected["stopped_run"]
        assert resumed["policy_sha256"] == expected["policy_of_uninterrupted_run"]
    finally:
        server.stop()


def test_the_deployment_of_0_1_0_is_there_and_names_todays_flow(stack: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_HOME", "RL_TRAINING_HOME")
    own = {name: os.environ[name] for name in names} | {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    services = Services(own["PREFECT_API_URL"], stack, inherited() | own | {"DO_NOT_TRACK": "1"})
    server = start(services, "server", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    try:
        assert eventually(lambda: answers(services.api_url), 240), (stack / "server.log").read_text()
        before = services.get("/deployments/name/train-flow/nightly")
        assert before["entrypoint"] == "flows.train.train_flow"
        assert [one["schedule"]["cron"] for one in before["schedules"]] == ["0 3 * * *"]
        command = [str(BIN / "rl-training"), "worker"]  # a worker moves the entrypoints when it starts
        worker = subprocess.Popen(command, env=services.environment, start_new_session=True)
        try:
            new = "rl_training.flows.train.train_flow"
            assert eventually(lambda: services.get("/deployments/name/train-flow/nightly")["entrypoint"] == new, 180)
        finally:
            end(worker)
    finally:
        end(server)
