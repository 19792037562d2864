"""`rl-training migrate` moves the embedded store to a real MLflow server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import Server
from mlflow_store import stored_points
from precious_runs import train_precious_runs
from waiting import wait_for

import rl_training
from rl_training.cli.app import run as run_command
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.mlflow_store import connect
from rl_training.tracking.shipping.sync import sync

pytestmark = pytest.mark.services


@pytest.fixture
def server(store_template: Path, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(store_template, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


def begin_migration(home: Path, uri: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RL_TRAINING_HOME": str(home), "MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-m", "rl_training", "migrate"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_migrated_champion_loads_and_a_stopped_run_resumes_to_the_same_bytes(
    home: Path, client: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    runs = train_precious_runs("moved")
    champion, stopped = runs.champion, runs.stopped
    old_points = stored_points(client, champion.run_id)

    moved = connect(server.uri)
    killed = begin_migration(home, server.uri)
    wait_for(lambda: moved.get_experiment_by_name("moved") is not None or killed.poll() is not None)
    assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    for _ in range(2):  # the second time there is nothing to do
        capfd.readouterr()
        assert run_command(["migrate", "--json"]) == 0, capfd.readouterr().err
        done = json.loads(capfd.readouterr().out)
        assert (done["runs"], done["versions"]) == (2, 1)
    experiment = moved.get_experiment_by_name("moved").experiment_id
    new_ids = {run.data.tags["rl_training.moved_from"]: run.info.run_id for run in moved.search_runs([experiment])}
    assert set(new_ids) == {champion.run_id, stopped.run_id}
    assert stored_points(moved, new_ids[champion.run_id]) == old_points
    old, new = client.get_run(champion.run_id), moved.get_run(new_ids[champion.run_id])
    assert (new.data.params, new.info.start_time, new.info.end_time) == (
        old.data.params,
        old.info.start_time,
        old.info.end_time,
    )
    version = moved.get_model_version_by_alias("plain", "champion")
    assert version.run_id == new_ids[champion.run_id]
    assert version.tags["candidate_key"] == f"{version.run_id}:{runs.promoted}"

    report = sync(stopped.run_dir)  # the directory tracks to the server, and everything was sent
    assert (report.run_id, report.unsent, report.message) == (new_ids[stopped.run_id], 0, "")

    monkeypatch.setenv("RL_TRAINING_ALLOW_MODULES", "case_envs")
    home.rename(tmp_path / "away")  # from here on, there is only the server
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "new_home"))
    assert download_checkpoint("models:/plain@champion").policy_sha256 == runs.promoted
    resumed = rl_training.resume(new_ids[stopped.run_id], progress=False)
    assert resumed.run_id == new_ids[stopped.run_id]
    assert resumed.policy_sha256 == runs.never_stopped
    assert moved.get_run(resumed.run_id).info.status == "FINISHED"


def test_a_migration_needs_a_server_and_an_idle_home(home: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(["migrate"]) == 2
    assert "expected an MLflow server; set MLFLOW_TRACKING_URI" in capfd.readouterr().err
    (home / "mlflow.db").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert run_command(["migrate"]) == 2
    assert "there is no embedded store to migrate" in capfd.readouterr().err
