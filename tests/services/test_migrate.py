"""`rl-training migrate` moves the embedded store to a real MLflow server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import Server
from mlflow_store import BAD, GOOD, points_of_file, run_with_policy, ship_all, stored_points, tracked_run, write_policy
from precious_runs import train_precious_runs
from waiting import wait_for

import rl_training
from rl_training import run_layout
from rl_training.cli.app import run as run_command
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.model_registry import get_or_register
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.metric_log import MetricLog
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


def migrate(uri: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> dict[str, Any]:
    """Migrates to the server; returns what the command prints. Afterwards commands use the embedded store again."""
    capfd.readouterr()
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        code = run_command(["migrate", "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def get_copy(moved: Any, run_id: str) -> Any:
    experiments = [experiment.experiment_id for experiment in moved.search_experiments()]
    (run,) = moved.search_runs(experiments, f"tags.`rl_training.moved_from` = '{run_id}'")
    return run


def make_champion(client: Any, checkpoint: Checkpoint, run_id: str) -> None:
    config = config_of_checkpoint(checkpoint)
    version, _ = get_or_register(client, embedded_tracking_uri(), "agent", checkpoint, config, run_id)
    client.set_registered_model_alias("agent", "champion", str(version.version))


def end_run(time: float) -> dict[str, Any]:
    return {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": time}


def test_what_has_changed_in_the_old_store_is_copied_again_and_what_has_changed_at_the_server_stays(
    home: Path,
    client: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, first_id = run_with_policy(GOOD)
    second, second_id = run_with_policy(BAD)
    client.set_terminated(first_id, "FINISHED", end_time=2_000_000_000_000)
    client.update_run(first_id, status="RUNNING")  # as a run that was resumed and then killed
    client.set_terminated(second_id, "FINISHED", end_time=2_000_000_000_000)
    make_champion(client, first, first_id)
    migrate(server.uri, monkeypatch, capfd)
    moved = connect(server.uri)
    copy = get_copy(moved, first_id)
    assert (copy.info.status, copy.info.end_time) == ("RUNNING", 2_000_000_000_000)

    client.set_terminated(first_id, "FAILED", end_time=2_000_000_001_000)
    client.set_tag(second_id, "late", f"as {first_id}")
    client.log_metric(second_id, "late", 0.5, timestamp=1, step=7)
    client.log_text(second_id, "late", "late.txt")
    make_champion(client, second, second_id)
    migrate(server.uri, monkeypatch, capfd)
    copy, other = get_copy(moved, first_id), get_copy(moved, second_id)
    assert (copy.info.status, copy.info.end_time) == ("FAILED", 2_000_000_001_000)
    assert other.data.tags["late"] == f"as {copy.info.run_id}"
    assert other.data.metrics["late"] == 0.5
    assert "late.txt" in [entry.path for entry in moved.list_artifacts(other.info.run_id)]
    assert moved.get_model_version_by_alias("agent", "champion").run_id == other.info.run_id

    moved.set_terminated(copy.info.run_id, "FINISHED", end_time=2_000_000_002_000)
    moved.set_registered_model_alias("agent", "champion", "1")
    for change in (lambda: None, lambda: client.set_tag(first_id, "later", "1")):  # only there, then in both stores
        change()
        migrate(server.uri, monkeypatch, capfd)
        assert get_copy(moved, first_id).info.status == "FINISHED"
        assert str(moved.get_model_version_by_alias("agent", "champion").version) == "1"
    assert f"run {first_id}, which is {copy.info.run_id} there, has changed in both stores" in caplog.text


def test_migrate_names_the_run_directories_that_were_not_sent_completely(
    home: Path, client: Any, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    run_dir, complete = tracked_run(), tracked_run()
    ship_all(complete, status=lambda: end_run(2_000_000_000.0))
    log = MetricLog(run_dir)
    log.log(8, {"loss": 1.5}, "update")
    old_id = ship_all(run_dir).address.run_id
    write_policy(run_dir, 16, GOOD)
    log.log(16, {"loss": 0.5}, "update")
    log.close()
    json_files.write_json(run_dir / run_layout.STATUS, end_run(2_000_000_000.0))

    assert migrate(server.uri, monkeypatch, capfd)["unsent"] == [str(run_dir)]
    report = sync(run_dir)
    moved = connect(server.uri)
    copy = get_copy(moved, old_id)
    assert (report.run_id, report.unsent, copy.info.status) == (copy.info.run_id, 0, "FINISHED")
    assert stored_points(moved, copy.info.run_id) == points_of_file(run_dir)
    assert len(stored_points(client, old_id)) == 1
    assert migrate(server.uri, monkeypatch, capfd)["unsent"] == []
    assert get_copy(moved, old_id).info.status == "FINISHED"


def test_run_directories_elsewhere_track_to_the_server_if_they_are_found_and_their_own(
    home: Path, client: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    places = {name: tmp_path / name for name in ("own", "gone", "replaced", "linked", "far")}
    ids = {}
    for name, run_dir in places.items():
        tracked_run(run_dir=str(run_dir))
        ids[name] = ship_all(run_dir, status=lambda: end_run(2_000_000_000.0)).address.run_id
    cleaned = tracked_run()
    ship_all(cleaned, status=lambda: end_run(2_000_000_000.0))
    shutil.rmtree(cleaned)
    places["gone"].rename(tmp_path / "away")
    metadata = json_files.read_json(places["replaced"] / run_layout.METADATA)
    json_files.write_json(places["replaced"] / run_layout.METADATA, {**metadata, "run_uid": "0" * 32})
    (places["linked"] / run_layout.CHECKPOINTS).symlink_to(tmp_path)
    client.set_tag(ids["far"], "host", "another-machine")

    done = migrate(server.uri, monkeypatch, capfd)
    host = socket.gethostname()
    assert sorted(done["lost"]) == sorted(
        [f"another-machine:{places['far']}", *(f"{host}:{places[name]}" for name in ("gone", "replaced", "linked"))]
    )
    moved = connect(server.uri)
    assert sync(places["own"]).run_id == get_copy(moved, ids["own"]).info.run_id
    for name in ("replaced", "linked", "far"):
        assert json_files.read_json(places[name] / run_layout.MLFLOW)["run_id"] == ids[name]

    (tmp_path / "away").rename(home / "runs" / "gone")
    done = migrate(server.uri, monkeypatch, capfd)
    assert (done["run_dirs"], len(done["lost"])) == (1, 3)
    assert sync(home / "runs" / "gone").run_id == get_copy(moved, ids["gone"]).info.run_id
