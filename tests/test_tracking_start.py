"""The start of tracking: imports may be slow, a process that hangs or is dead is an error, and a file need not wait."""

import json
import logging
import os
import subprocess
import sys

import pytest
from mlflow_store import make_run, ship_all, tracked_run
from waiting import wait_for

from rl_training.api.train_and_resume import train
from rl_training.errors import TrackingError
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import find_checkpoint
from rl_training.tracking import session
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping import shipper_process
from rl_training.tracking.shipping.run_start import RunStart, may_start_beside
from rl_training.tracking.shipping.shipper_process import CAUGHT_UP, LOADED

NOWHERE = "http://127.0.0.1:9"
SLOW = """
import sys, time
sys.path = [path for path in sys.path if path != {folder!r}]
while time.process_time() < 8.0:
    pass
del sys.modules["mlflow"]
import mlflow
"""
HANGING = "import time; time.sleep(600)"
LOOPING = "while True: pass"
DEAD = "raise SystemExit('gone')"


@pytest.fixture
def shippers_mlflow(tmp_path, monkeypatch):
    """Puts a package `mlflow` before the real one, for the process that imports it next."""
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))

    def put(source: str) -> None:
        package = tmp_path / "before" / "mlflow"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source.replace("{folder!r}", repr(str(package.parent))))
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return put


@pytest.mark.slow
def test_imports_may_take_longer_than_a_process_may_stand_still(shippers_mlflow, monkeypatch):
    monkeypatch.setattr(shipper_process, "START_SECONDS", 4.0)
    shippers_mlflow(SLOW)
    run_dir, config = make_run()
    with pytest.raises(TrackingError, match="connection refused"):  # so the server was asked
        start_tracking(run_dir, config, tracking_uri=NOWHERE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "still", "why"),
    [
        (HANGING, 2.0, "no answer in time"),
        (LOOPING, 2.0, "no answer in time"),
        (DEAD, 60.0, "its process ended with exit code 1: gone"),
    ],
)
def test_a_process_that_does_not_start_is_an_error(shippers_mlflow, monkeypatch, source, still, why):
    monkeypatch.setattr(shipper_process, "START_SECONDS", still)
    monkeypatch.setattr(shipper_process, "START_CPU_SECONDS", 4.0)
    shippers_mlflow(source)
    run_dir, config = make_run()
    with pytest.raises(TrackingError) as caught:
        start_tracking(run_dir, config, tracking_uri=NOWHERE)
    assert str(caught.value).splitlines()[0] == f"MLflow at {NOWHERE} can't be used: {why}"


def test_the_first_connection_makes_the_store_without_a_word(tmp_path):
    code = f"from rl_training.tracking.mlflow_store import connect; connect('sqlite:///{tmp_path}/mlflow.db')"
    quiet = {name: value for name, value in os.environ.items() if name != "MLFLOW_LOGGING_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], env=quiet, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "mlflow.db").exists()


class FakeShipper:
    """A shipper whose lines the test gives; it is silent after them."""

    def __init__(self, *lines: dict[str, object]) -> None:
        self.lines, self.killed = [json.dumps(line) for line in lines], False

    def read_line(self, seconds: float) -> str | None:
        return self.lines.pop(0) if self.lines else None

    def hangs(self) -> bool:
        return False

    def kill(self) -> None:
        self.killed = True


ADDRESS = {"run_id": "abc", "experiment_id": "1", "ui": "rl-training ui abc"}


def test_training_does_not_wait_for_a_local_file_alone(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0 and more")
    (tmp_path / "notes.txt").write_text("SQLite format 2")
    (tmp_path / "empty.db").touch()
    uris = {
        f"sqlite:///{tmp_path}/mlflow.db": True,
        f"sqlite:///{tmp_path}/new.db": True,
        f"sqlite:///{tmp_path}/notes.txt": False,
        f"sqlite:///{tmp_path}/empty.db": False,
        f"sqlite:///{tmp_path}/missing/new.db": False,
        f"sqlite:///{tmp_path}": False,
        "http://127.0.0.1:5000": False,
        "postgresql://u@h/db": False,
    }
    assert {uri: may_start_beside(uri) for uri in uris} == uris


def test_the_page_of_a_run_is_logged_once_it_exists(caplog):
    start = RunStart(FakeShipper(LOADED, ADDRESS), "sqlite:////mlflow.db")
    stop = StopFlag()
    with caplog.at_level(logging.INFO):
        start.announce(stop)
        wait_for(lambda: bool(caplog.messages))
    assert caplog.messages == ["MLflow run abc: rl-training ui abc"]
    assert start.wait() == ADDRESS
    assert stop.cause is None


def test_a_store_that_fails_beside_training_asks_it_to_stop():
    shipper, stop = FakeShipper(LOADED, {"error": "the disk is full", "server": False}), StopFlag()
    start = RunStart(shipper, "sqlite:////mlflow.db")
    start.announce(stop)
    wait_for(lambda: stop.cause is not None)
    assert (stop.cause, stop.seen, shipper.killed) == ("failed", False, True)
    for _ in range(2):
        with pytest.raises(TrackingError, match=r"^the disk is full$"):
            start.wait()


def test_a_run_that_began_late_ends_once_its_record_is_sent():
    report = {"report": {"sent": 3}, "deleted": False, "elsewhere": False}
    shipper = FakeShipper(LOADED, ADDRESS, {"step": "answered"}, CAUGHT_UP, report)
    start, stop = RunStart(shipper, "sqlite:////mlflow.db"), StopFlag()
    start.announce(stop)
    wait_for(lambda: start.address is not None)
    start._began -= 1_000.0  # training has taken this long
    start.catch_up(stop)
    assert shipper.lines == [json.dumps(report)]
    assert start.read_report(lambda: 60.0) == report


def test_a_run_that_existed_before_training_is_not_waited_for_again():
    shipper = FakeShipper(LOADED, ADDRESS, CAUGHT_UP)
    start, stop = RunStart(shipper, "sqlite:////mlflow.db"), StopFlag()
    assert start.wait() == ADDRESS
    start.announce(stop)
    start.catch_up(stop)
    assert shipper.lines == [json.dumps(CAUGHT_UP)]


@pytest.mark.slow
def test_training_ends_with_the_error_of_a_local_store_and_can_be_resumed(shippers_mlflow, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shippers_mlflow(DEAD)
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10**9, "rollout_steps": 64, "batch_size": 64}
    with pytest.raises(TrackingError, match="can't be used: its process ended with exit code 1: gone"):
        train(config)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert find_checkpoint(run_dir).num_timesteps > 0
    assert json.loads((run_dir / "status.json").read_text())["status"] == "FAILED"


def test_a_run_that_is_resumed_with_another_store_says_so(home, caplog):
    run_dir = tracked_run()
    ship_all(run_dir)
    with caplog.at_level(logging.WARNING):
        for uri in (f"sqlite:///{home}/mlflow.db", "http://me:secret@127.0.0.1:5000"):
            session._warn_of_another_store(run_dir, uri)
    assert caplog.messages == [
        f"the run was tracked at sqlite:///{home}/mlflow.db, and is now tracked at http://127.0.0.1:5000; to "
        f"continue its first record instead, stop it, set MLFLOW_TRACKING_URI, and resume it again"
    ]
