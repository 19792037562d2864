"""The start of tracking: imports may be slow, and a process that hangs or is dead is an error."""

import os
import subprocess
import sys

import pytest
from mlflow_store import make_run

from rl_training.errors import TrackingError
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping import shipper_process

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
