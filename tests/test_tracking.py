"""Tracking of a run: the process beside training, with a store of its own and with a real server."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from mlflow_server import Server, free_port
from mlflow_store import (
    GOOD,
    NETWORK,
    WEAK,
    make_run,
    points_of_file,
    run_with_policy,
    ship_all,
    stored_points,
    tracked_run,
)
from waiting import LIMIT, wait_for

from rl_training import run_layout
from rl_training.errors import TrackingError, UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.promote import promote
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.trainers.ppo_trainer import make_ppo_trainer
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.mlflow_links import get_ui_hint
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, strip_credentials
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping.sync import sync
from rl_training.tracking.shipping.system_metrics import SystemMetrics, read_interval
from rl_training.tracking.version_files import download_version_policy
from tests.off_policy_runs import dqn


def test_a_training_run_is_complete_in_mlflow(client, home):
    _, config = make_run(  # for its settings: the trainer makes the run's directory
        total_timesteps=256,
        num_envs=2,
        rollout_steps=32,
        batch_size=32,
        epochs=1,
        network=NETWORK,
        logging={"every": 1},
        evaluation={"every": 128, "episodes": 2},
        checkpoint={"every": 128},
    )
    trainer = make_ppo_trainer(config)
    run_dir = trainer.run.run_dir
    with start_tracking(run_dir, trainer.config, tags={"attempt": "1"}) as session:
        trainer.callbacks.append(session.callback)
        result = trainer.train()
        session.log(result.num_timesteps, {"heldout/return_mean": 9.0}, "heldout")
        session.log_artifact("evaluation.json", json.dumps({"return_mean": 9.0}))
        report = session.finish("FINISHED", stop_reason="completed")
    assert report.unsent == 0
    if report.message:  # a busy machine has not sent all files within the limit
        assert report.message.endswith(f"`rl-training sync {run_dir}` sends the rest")
        assert sync(run_dir).message == ""
    assert report.run_id == session.run_id
    run = client.get_run(session.run_id)
    assert (run.info.status, run.data.tags["stop_reason"], run.data.tags["attempt"]) == ("FINISHED", "completed", "1")
    assert run.data.tags["run_uid"] == result.run_uid == session.run_uid
    points = stored_points(client, session.run_id)
    assert points == points_of_file(run_dir, 256)
    assert {"train/policy_loss", "eval/return_mean", "heldout/return_mean"} <= {key for key, _, _, _ in points}
    assert [step for key, step, _, _ in sorted(points) if key == "eval/return_mean"] == [128, 256]
    names = {entry.path for entry in client.list_artifacts(session.run_id)}
    assert {"learning_curve.png", "evaluation.json", "evaluations", "config.yaml", "metadata.json"} <= names
    kept = {path.name for path in (run_dir / "checkpoints").glob("step_*")}
    sent = {Path(entry.path).name for entry in client.list_artifacts(session.run_id, "checkpoints")}
    assert kept <= sent
    known = json_files.read_json(run_dir / run_layout.MLFLOW)
    assert (known["run_id"], known["tracking_uri"]) == (session.run_id, f"sqlite:///{home}/mlflow.db")
    assert session.ui == f"RL_TRAINING_HOME={home} rl-training ui {session.run_id}"
    assert session.finish("FAILED") == report  # the first word counts


KILLED_RUN = """
import os, signal, sys, time
from pathlib import Path
from rl_training.experiment.loading import load_config
from rl_training.promotion.promote import promote
from rl_training.tracking.session import start_tracking
from rl_training.tracking.checkpoint_sources import download_checkpoint, download_version_policy
run_dir = Path(sys.argv[1])
session = start_tracking(run_dir, load_config(run_dir / "config.yaml"))
for step in range(0, 100_000, 500):
    session.log(step, {"train/loss": float(step)}, "update")
print(session._shipper.popen.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_marked_and_complete(client):
    run_dir, _ = make_run()
    killed = subprocess.run([sys.executable, "-c", KILLED_RUN, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    run_id = json_files.read_json(run_dir / run_layout.MLFLOW)["run_id"]
    pid = int(killed.stdout)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["stop_reason"]) == ("KILLED", "killed")
    assert stored_points(client, run_id) == points_of_file(run_dir)
    assert json_files.read_json(run_dir / run_layout.STATUS)["status"] == "KILLED"
    log = (run_dir / run_layout.SHIPPER_LOG).read_text()
    assert log.endswith("training is gone; MLflow has 200 metric values, and lacks 0\n")


def test_an_error_marks_the_run_failed_and_offline_runs_are_sent_later(home, client):
    run_dir, config = make_run()
    session = start_tracking(run_dir, config, offline=True)
    assert session.run_id is None
    session.log(10, {"train/loss": 1.0}, "update")
    with pytest.raises(ZeroDivisionError), session:
        _ = 1 / 0
    report = session.finish("FINISHED")
    assert (report.run_id, report.sent, report.unsent) == (None, 0, 1)
    assert f"rl-training sync {run_dir}" in report.message
    assert not (run_dir / run_layout.MLFLOW).exists()
    sent = sync(run_dir)
    run = client.get_run(sent.run_id)
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "ZeroDivisionError: division by zero")
    assert (sent.sent, sent.unsent) == (1, 0)


@pytest.mark.slow
def test_several_runs_start_at_once_on_a_store_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "fresh"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = [make_run(seed=seed) for seed in range(3)]
    sessions = [start_tracking(run_dir, config, wait=False) for run_dir, config in runs]
    for session in sessions:
        session.log(1, {"train/loss": 1.0}, "update")
    for session in sessions:
        session.ready()
    reports = [session.finish("FINISHED") for session in sessions]
    client = connect(resolve_tracking_uri())
    assert len({report.run_id for report in reports}) == 3
    for report, (run_dir, _) in zip(reports, runs, strict=True):
        assert (report.sent, report.unsent, report.message) == (1, 0, "")
        assert stored_points(client, report.run_id) == points_of_file(run_dir)


def test_load_of_the_machine_is_recorded_where_asked_for(client, monkeypatch):
    assert read_interval() == 0.0
    monkeypatch.setenv("RL_TRAINING_SYSTEM_METRICS", "0.01")
    run_dir = tracked_run()
    system = SystemMetrics(run_dir / run_layout.SYSTEM_METRICS, os.getpid(), read_interval())
    system.record(7)  # not yet due
    time.sleep(0.05)
    system.record(8)
    run_id = ship_all(run_dir).address.run_id
    points = {key: (step, value) for key, step, value, _ in stored_points(client, run_id)}
    assert {step for step, _ in points.values()} == {8}
    assert 50 < points["system/training_memory_megabytes"][1] < 100_000
    assert 0 < points["system/memory_usage_percentage"][1] <= 100
    monkeypatch.setenv("RL_TRAINING_SYSTEM_METRICS", "often")
    with pytest.raises(UserError, match="expected a number of seconds"):
        read_interval()


@pytest.fixture(scope="module")
def server(store_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(store_template, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_a_server_that_goes_away_loses_and_doubles_nothing(server, home):
    run_dir, config = make_run()
    client = connect(server.uri)
    session = start_tracking(run_dir, config, tracking_uri=server.uri)

    def held():
        return "train/loss" in client.get_run(session.run_id).data.metrics

    def log(start, stop):
        session._shipper.popen.send_signal(signal.SIGSTOP)  # training doesn't wait for the process that asks MLflow
        for step in range(start, stop, 500):
            session.log(step, {"train/loss": step / 3, "rollout/episode_return_mean": float(step)}, "update")
        session._shipper.popen.send_signal(signal.SIGCONT)

    log(0, 20_000)
    wait_for(held)
    assert session.ui.startswith(f"{server.uri}/#/experiments/")

    server.stop()
    log(20_000, 40_000)
    checkpoint = run_dir / "checkpoints" / "step_000000040000"
    checkpoint.mkdir(parents=True)
    (checkpoint / "policy.pt").write_bytes(b"weights")
    (checkpoint / "manifest.json").write_text("{}")
    time.sleep(2)
    server.start()  # back in mid-run
    wait_for(lambda: stored_points(client, session.run_id) == points_of_file(run_dir))
    wait_for(lambda: len(client.list_artifacts(session.run_id, "checkpoints/step_000000040000")) == 2)

    server.stop()
    log(40_000, 60_000)
    report = session.finish("KILLED", stop_reason="signal", wait=1.0)
    assert session._shipper.popen.poll() is None  # it still tries to reach the server
    assert report.unsent == 80
    assert f"`rl-training sync {run_dir}` sends the rest" in report.message
    session._shipper.popen.wait(timeout=LIMIT)  # it gives up after 15 s
    server.start()  # back after the end
    report = sync(run_dir)  # knows by itself where the run is
    assert (report.run_id, report.unsent, report.message) == (session.run_id, 0, "")
    assert stored_points(client, session.run_id) == points_of_file(run_dir)
    assert len(points_of_file(run_dir)) == 240
    assert client.get_run(session.run_id).info.status == "KILLED"
    local = client.download_artifacts(session.run_id, "checkpoints/step_000000040000/policy.pt")
    assert Path(local).read_bytes() == b"weights"


@pytest.mark.slow
def test_promotion_and_download_through_a_server(server, home):
    client = connect(server.uri)
    results = []
    for i, gains in enumerate((WEAK, GOOD)):
        checkpoint, run_id = run_with_policy(gains, uri=server.uri, seed=i)
        config = config_of_checkpoint(checkpoint, {"promotion": {"episodes": 20}})
        results.append(promote(checkpoint, config, run_id=run_id, tracking_uri=server.uri))
    assert [(r.verdict.kind, r.version, r.previous_version) for r in results] == [
        ("PROMOTE", "1", None),
        ("PROMOTE", "2", "1"),
    ]
    found = download_checkpoint("models:/CartPole-v1@champion", tracking_uri=server.uri)
    assert found.policy_sha256 == checkpoint.policy_sha256
    own = download_version_policy(client, server.uri, client.get_model_version_by_alias("CartPole-v1", "champion"))
    assert own.policy_sha256 == checkpoint.policy_sha256
    names = [model.name for model in client.search_registered_models()]
    assert sorted(names) == ["CartPole-v1", "promotion-lock.CartPole-v1.2"]


@pytest.mark.slow
def test_the_pages_of_a_server_show_the_pictures_of_a_run(server, home):
    run_dir = tracked_run()
    evaluation = EvaluationResult((1, 2), (9.0, 10.0), (9, 10)).to_dict()
    json_files.write_json(run_dir / run_layout.ARTIFACTS / run_layout.HELD_OUT, evaluation)
    run_id = ship_all(run_dir, uri=server.uri).address.run_id
    note = connect(server.uri).get_run(run_id).data.tags["mlflow.note.content"]
    (address,) = re.findall(r"!\[evaluation_histogram.png\]\((.*?)\)", note)
    with urllib.request.urlopen(f"{server.uri}/{address}", timeout=LIMIT) as answer:
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.read() == (run_dir / "artifacts" / "evaluation_histogram.png").read_bytes()


@pytest.mark.slow
def test_replay_shards_go_to_a_server_once_and_come_back(server, home):
    settings = dqn("CartPole-v1", total_timesteps=80, learning_starts=60, buffer_size=100, checkpoint={"every": 40})
    run_dir = DefaultExperimentManager().setup(settings).train().run_dir
    json_files.write_json(run_dir / run_layout.TRACKING, describe_run(run_dir, settings, {}))
    run_id = ship_all(run_dir, uri=server.uri).address.run_id
    on_server = {path: path.stat().st_mtime_ns for path in server.folder.glob(f"served/*/{run_id}/**/*.pt")}
    assert sorted((path.parent.name, len(path.stem) == 64) for path in on_server) == [
        ("replay", True),
        ("replay", True),
        *[(f"step_{step:012d}", False) for step in (40, 80) for _ in ("policy", "trainer")],
    ]
    (run_dir / run_layout.SHIPPED).unlink()
    ship_all(run_dir, uri=server.uri)
    sent_again = {path.parent.name for path, written in on_server.items() if path.stat().st_mtime_ns != written}
    assert sent_again == {f"step_{step:012d}" for step in (40, 80)}
    shutil.rmtree(run_dir)
    found = download_checkpoint(run_id, tracking_uri=server.uri)
    assert found.num_timesteps == 80
    assert {path.name for path in found.path.iterdir()} == {"manifest.json", *found.manifest.files}


@pytest.mark.slow
def test_a_server_that_is_away_at_the_start_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    run_dir, config = make_run()
    uri = f"http://somebody:hunter2@127.0.0.1:{free_port()}"
    with pytest.raises(TrackingError) as caught:
        start_tracking(run_dir, config, tracking_uri=uri)
    message = str(caught.value)
    assert strip_credentials(uri) in message
    assert "hunter2" not in message
    reason, advice = message.splitlines()
    assert reason == f"MLflow at {strip_credentials(uri)} can't be used: connection refused"
    assert "--offline" in advice
    assert str(run_dir) not in message  # it never trained, so there is nothing to do with it
    assert sorted(path.name for path in run_dir.iterdir()) == ["config.yaml", "metadata.json"]


@pytest.mark.slow
def test_a_run_that_cannot_be_resumed_keeps_its_status(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    run_dir, config = make_run()
    (run_dir / "checkpoints").mkdir()
    status = {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": 1.0}
    json_files.write_json(run_dir / run_layout.STATUS, status)
    uri = f"http://somebody:hunter2@127.0.0.1:{free_port()}"
    with pytest.raises(TrackingError, match="connection refused"):
        start_tracking(run_dir, config, tracking_uri=uri)
    assert json_files.read_json(run_dir / run_layout.STATUS) == status
    for path in run_dir.iterdir():
        assert path.is_dir() or "hunter2" not in path.read_text()


@pytest.mark.slow
def test_a_server_that_hangs_at_the_start_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    monkeypatch.setattr("rl_training.tracking.shipping.run_start.SERVER_SECONDS", 2.0)
    run_dir, config = make_run()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(TrackingError, match="no answer in time"):
            start_tracking(run_dir, config, tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")


def test_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/here.db"
    assert resolve_tracking_uri("http://h:1") == "http://h:1"
    for directory in ("./mlruns", "file:///tmp/mlruns"):
        with pytest.raises(TrackingError, match="is a directory"):
            resolve_tracking_uri(directory)
    assert strip_credentials("http://u:p@h:1/x") == "http://h:1/x"
    assert strip_credentials("postgresql+psycopg2://u:p@h/db") == "postgresql+psycopg2://h/db"
    page = "https://h:1/#/experiments/3/runs/abc?workflowType=machine_learning"
    assert get_ui_hint("https://u:p@h:1/", "3", "abc") == page
    assert get_ui_hint("sqlite:////a b.db", "3", "abc") == "MLFLOW_TRACKING_URI='sqlite:////a b.db' rl-training ui abc"
    assert get_ui_hint("postgresql://u:p@h/db", "3", "abc") == "rl-training ui abc"


def test_what_is_written_of_a_run_holds_no_secret(home):
    address = "http://u:CASE-SECRET@h/x"
    run_dir = tracked_run(
        {"flow": address},
        tags={"robot": address, "my_password": "CASE-SECRET", "team": "blue"},
        run_name=f"at {address}",
    )
    written = (run_dir / run_layout.TRACKING).read_text()
    assert "CASE-SECRET" not in written
    described = json.loads(written)
    shown = "http://u:***@h/x"
    own = {name: described["tags"][name] for name in ("flow", "robot", "my_password", "team")}
    assert own == {"flow": shown, "robot": shown, "my_password": "***", "team": "blue"}
    assert described["run_name"] == f"at {shown}"


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a%3fb"])
def test_a_home_that_mlflow_misreads_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / name))
    run_dir, config = make_run()
    with pytest.raises(TrackingError, match=r"set RL_TRAINING_HOME to a folder without them") as caught:
        start_tracking(run_dir, config)
    assert f"the MLflow store can't be {tmp_path / name}/mlflow.db: MLflow misreads" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert resolve_tracking_uri("http://h/a%20b?c") == "http://h/a%20b?c"


def test_other_odd_homes_have_their_store_inside(store_template, tmp_path, monkeypatch):
    home = tmp_path / "a #b ö&+@%me%"
    home.mkdir()
    shutil.copy(store_template, home / "mlflow.db")
    monkeypatch.setenv("RL_TRAINING_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tracked_run()
    shipment = ship_all(run_dir, uri=resolve_tracking_uri())
    assert shipment.address.ui == f"RL_TRAINING_HOME='{home}' rl-training ui {shipment.address.run_id}"
    (config_file,) = (home / "artifacts").rglob("config.yaml")
    assert config_file.read_text() == (run_dir / "config.yaml").read_text()
    with sqlite3.connect(home / "mlflow.db") as database:
        assert database.execute("select run_uuid from runs").fetchall() == [(shipment.address.run_id,)]
    assert [path.name for path in tmp_path.iterdir()] == [home.name]


def test_threads_are_not_left_behind(home):
    before = threading.active_count()
    run_dir, config = make_run()
    with start_tracking(run_dir, config, offline=True) as session:
        session.log(1, {"a": 1.0}, "update")
    assert threading.active_count() == before
