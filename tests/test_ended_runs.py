"""Runs whose processes are gone do not stay RUNNING in MLflow."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from filelock import FileLock
from mlflow_store import make_run, ship_all, tracked_run

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.orphaned_runs import end_orphaned_runs
from rl_training.tracking.session import start_tracking

BOTH_KILLED = """
import os, signal, sys, time
from pathlib import Path
from rl_training.experiment.loading import load_config
from rl_training.tracking.session import start_tracking
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri
run_dir = Path(sys.argv[1])
session = start_tracking(run_dir, load_config(run_dir / "config.yaml"))
client = connect(resolve_tracking_uri())
while "host" not in client.get_run(session.run_id).data.tags:
    time.sleep(0.1)
os.kill(session._shipper.popen.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def describe(run_dir, **process):
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    description["process"] |= process
    json_files.write_json(run_dir / run_layout.TRACKING, description)


def run_without_process(**settings):
    """Makes a run that is RUNNING in MLflow and whose process is gone; returns its directory and id."""
    run_dir = tracked_run(**settings)
    describe(run_dir, created=1.0)  # another process has its number now
    return run_dir, ship_all(run_dir).address.run_id


def status(client, run_id):
    return client.get_run(run_id).info.status


@pytest.mark.slow
def test_the_next_run_ends_one_that_was_killed_with_its_shipper(client):
    run_dir, _ = make_run()
    killed = subprocess.run([sys.executable, "-c", BOTH_KILLED, str(run_dir)])
    assert killed.returncode == -signal.SIGKILL
    run_id = json_files.read_json(run_dir / run_layout.MLFLOW)["run_id"]
    assert status(client, run_id) == "RUNNING"
    with start_tracking(*make_run()) as session:
        session.log(1, {"train/loss": 1.0}, "update")
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["stop_reason"]) == ("KILLED", "killed")
    assert run.data.tags["error"] == "the training process ended without recording a status: it was killed"
    assert status(client, session.run_id) == "FINISHED"


def test_a_run_is_ended_once_as_its_directory_says_and_when_it_last_wrote(client):
    run_dir, killed = run_without_process()
    os.utime(run_dir / run_layout.TRACKING, (1_000_000_000, 1_000_000_000))
    finished_dir, finished = run_without_process(experiment="another")
    ended = {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": 7}
    json_files.write_json(finished_dir / run_layout.STATUS, ended)
    assert set(end_orphaned_runs(client, "own")) == {killed, finished}
    assert (status(client, killed), status(client, finished)) == ("KILLED", "FINISHED")
    assert client.get_run(killed).info.end_time == 1_000_000_000_000
    assert json_files.read_json(run_dir / run_layout.STATUS)["status"] == "KILLED"
    assert end_orphaned_runs(client, "own") == []


@pytest.mark.parametrize("why", ["own", "alive", "sent", "elsewhere", "other run", "removed"])
def test_a_run_that_may_continue_is_left_alone(client, why):
    run_dir, run_id = run_without_process()
    lock = FileLock(run_dir / run_layout.SHIPPER_LOCK)
    if why == "alive":
        describe(run_dir, created=psutil.Process().create_time())
    elif why == "sent":
        lock.acquire()
    elif why == "elsewhere":
        client.set_tag(run_id, "host", "another-machine")
    elif why == "other run":
        client.set_tag(run_id, "run_uid", "another")
    elif why == "removed":
        (run_dir / run_layout.TRACKING).unlink()
    assert end_orphaned_runs(client, run_id if why == "own" else "own") == []
    assert status(client, run_id) == "RUNNING"
    lock.release()
