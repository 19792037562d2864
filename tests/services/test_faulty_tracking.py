"""Training with a tracking server that fails in every way: it is not slowed down, and MLflow is complete at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import Server
from mlflow_store import GOOD, make_run, points_of_file, stored_points, write_policy
from shaky_proxy import ShakyProxy
from waiting import wait_for

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.tracking.mlflow_run import RunDeleted
from rl_training.tracking.mlflow_store import connect
from rl_training.tracking.session import TrackingSession, start_tracking
from rl_training.tracking.shipping.sync import sync

pytestmark = pytest.mark.services

MODES = ("slow", "hang", "error500", "error429", "drop", "lose")


@pytest.fixture(scope="module")
def server(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    import shutil

    folder = tmp_path_factory.mktemp("faulty")
    shutil.copy(store_template, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShakyProxy]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")  # a request that hangs is given up sooner than by default
    proxy = ShakyProxy(server.port)
    yield proxy
    proxy.stop()


def log(session: TrackingSession, start: int, stop: int) -> None:
    """Logs points as training does; no call waits for MLflow."""
    began = time.monotonic()
    for step in range(start, stop, 500):
        session.log(step, {"train/loss": step / 3, "rollout/episode_return_mean": float(step)}, "update")
    assert time.monotonic() - began < 2


def make_checkpoint(session: TrackingSession, step: int) -> str:
    """Writes a checkpoint with a policy, after its evaluation; returns its name."""
    session.log(step, {"eval/return_mean": float(step)}, "eval")
    return write_policy(session.run_dir, step, GOOD).path.name


def test_every_illness_passes_and_nothing_is_lost_or_doubled(server: Server, proxy: ShakyProxy) -> None:
    run_dir, config = make_run()
    client: Any = connect(server.uri)  # past the proxy
    session = start_tracking(run_dir, config, tracking_uri=proxy.uri)
    run_id = session.run_id
    assert run_id is not None
    checkpoints = []
    for i, mode in enumerate(MODES):
        proxy.mode = mode
        log(session, 10_000 * i, 10_000 * i + 5_000)
        checkpoints.append(make_checkpoint(session, 10_000 * i + 1))
        wait_for(lambda mode=mode: [request.mode for request in proxy.requests].count(mode) >= 3)
        log(session, 10_000 * i + 5_000, 10_000 * (i + 1))
        proxy.mode = "pass"
        wait_for(lambda: stored_points(client, run_id) == points_of_file(run_dir))
    report = session.finish("FINISHED", stop_reason="completed")
    assert (report.unsent, report.message) == (0, "")
    assert len(stored_points(client, run_id)) == 41 * len(MODES)
    for checkpoint in checkpoints:
        assert len(client.list_artifacts(run_id, f"checkpoints/{checkpoint}")) == 4
    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], order_by=[{"field_name": "metrics.eval/return_mean"}])
    assert [(model.tags["checkpoint"], str(model.status)) for model in models] == [
        (name, "READY") for name in checkpoints
    ]
    assert [model.metrics[0].value for model in models] == [10_000 * i + 1 for i in range(len(MODES))]
    assert client.get_run(run_id).info.status == "FINISHED"
    assert client.get_run(run_id).data.tags["attempt"] == "1"


@pytest.mark.parametrize("mode", ["slow", "lose"])
def test_a_run_starts_at_a_server_that_answers_late_or_loses_answers(
    mode: str, server: Server, proxy: ShakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.mode = mode
    if mode == "slow":  # its first answer comes in time, and all of them together would not
        monkeypatch.setattr("rl_training.tracking.shipping.run_start.SERVER_SECONDS", 6.0)
        proxy.delay = 3.0
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    run_dir, config = make_run(experiment=f"starts_{mode}")
    with start_tracking(run_dir, config, tracking_uri=proxy.uri) as session:
        log(session, 0, 2_000)
        proxy.mode = "pass"
    client: Any = connect(server.uri)
    experiment = client.get_experiment_by_name(f"starts_{mode}").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert stored_points(client, run.info.run_id) == points_of_file(run_dir)


@pytest.mark.parametrize("mode", ["hang", "error500", "error429", "drop"])
def test_an_ill_server_at_the_start_is_one_error_within_half_a_minute(mode: str, proxy: ShakyProxy) -> None:
    proxy.mode = mode
    run_dir, config = make_run()
    with pytest.raises(TrackingError) as caught:
        start_tracking(run_dir, config, tracking_uri=proxy.uri)
    # The starts of both processes are the machine's business, and take some seconds each where it is not busy.
    assert time.monotonic() - proxy.requests[0].at < 20
    reason, advice = str(caught.value).splitlines()
    assert reason.startswith(f"MLflow at {proxy.uri} can't be used: ")
    assert "--offline" in advice
    assert sorted(path.name for path in run_dir.iterdir()) == ["config.yaml", "metadata.json"]


def test_a_run_that_is_deleted_in_the_ui_is_reported_and_sent_again(server: Server, home: Path) -> None:
    run_dir, config = make_run()
    client: Any = connect(server.uri)
    session = start_tracking(run_dir, config, tracking_uri=server.uri)
    log(session, 0, 2_000)
    wait_for(lambda: "train/loss" in client.get_run(session.run_id).data.metrics)
    client.delete_run(session.run_id)
    log(session, 2_000, 4_000)
    report = session.finish("FINISHED", stop_reason="completed")
    assert report.unsent == 8
    assert f"run {session.run_id} was deleted in MLflow" in report.message
    assert f"`rl-training sync {run_dir} --new-run` sends everything to a new run" in report.message
    with pytest.raises(RunDeleted):
        sync(run_dir)
    again = sync(run_dir, new_run=True)
    assert again.run_id != session.run_id
    assert stored_points(client, again.run_id) == points_of_file(run_dir)
    assert client.get_run(again.run_id).info.status == "FINISHED"


SMALL_DISK = """
import json, os, sys, time
from pathlib import Path
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.run_utils import create_training_run
from rl_training.tracking.session import start_tracking
store, filler = Path(sys.argv[1]), Path(sys.argv[1]) / "filler"
config = config_from_mapping({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000})
run_dir = create_training_run(config).run_dir
session = start_tracking(run_dir, config, tracking_uri=f"sqlite:///{store}/mlflow.db")
session.log(0, {"train/loss": 0.0}, "update")
time.sleep(4.0)  # sent
fill(filler)
began = time.monotonic()
for step in range(50, 100_000, 50):
    session.log(step, {"train/loss": step / 3}, "update")
logged = time.monotonic() - began
time.sleep(6.0)
full = "full" in (run_dir / "shipper.log").read_text() or "disk I/O" in (run_dir / "shipper.log").read_text()
make_room(filler)
report = session.finish("FINISHED", stop_reason="completed", wait=90.0)
print(json.dumps({"run_dir": str(run_dir), "run_id": session.run_id, "full": full, "logged": logged,
                  "unsent": report.unsent, "message": report.message}))
"""

ON_TMPFS = """
def fill(filler):
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

def make_room(filler):
    filler.unlink()
"""
"""Where this process may mount one: a disk of 16 MB that a file fills up."""

BY_LIMIT = """
import resource
import psutil

def shipper():
    (process,) = [p for p in psutil.Process().children() if "rl_training.tracking.shipping.shipper" in p.cmdline()]
    return process

def fill(filler):
    size = os.stat(store / "mlflow.db").st_size
    resource.prlimit(shipper().pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def make_room(filler):
    resource.prlimit(shipper().pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
"""Elsewhere: no file of the shipper may grow."""


def test_a_disk_of_the_store_that_is_full_for_a_while(
    store_template: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    mount = f"mount -t tmpfs -o size=16m none {store} && cp {store_template} {store}/mlflow.db"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mounts = subprocess.run([*unshare, mount], capture_output=True, check=False).returncode == 0
    code = (ON_TMPFS if mounts else BY_LIMIT) + SMALL_DISK
    copied = f"cp {store}/mlflow.db {tmp_path}/after.db"
    script = f"{mount if mounts else f'cp {store_template} {store}/mlflow.db'} && {sys.executable} -c '{code}' {store}"
    command = [*unshare, f"{script} && {copied}"] if mounts else ["sh", "-c", f"{script} && {copied}"]
    code_as_file = tmp_path / "small_disk.py"
    code_as_file.write_text(code)
    command[-1] = command[-1].replace(f"-c '{code}'", str(code_as_file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["full"], "the disk was not full"
    assert said["logged"] < 5.0
    assert (said["unsent"], said["message"]) == (0, "")
    client: Any = connect(f"sqlite:///{tmp_path}/after.db")
    assert client.get_run(said["run_id"]).info.status == "FINISHED"
    assert stored_points(client, said["run_id"]) == points_of_file(Path(said["run_dir"]))
    assert len(points_of_file(Path(said["run_dir"]))) == 2_000
    assert (Path(said["run_dir"]) / run_layout.STATUS).exists()
