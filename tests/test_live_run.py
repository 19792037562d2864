"""A run that another process is training stays unchanged, whichever command asks to resume it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import LIMIT, wait_for

from rl_training import resume
from rl_training.cli.app import run
from rl_training.errors import AlreadyTraining
from rl_training.flows.resume import resume_flow
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.tracking.checkpoint_sources import download_checkpoint

pytestmark = pytest.mark.slow

TRAIN = """
import sys
from rl_training.api.train_and_resume import train
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.callbacks import Callback

class Pauses(Callback):
    def on_collect_end(self, state):
        if state.num_timesteps == 100:
            print(state.run_dir, flush=True)
            sys.stdin.readline()

config = config_from_mapping({
    "algo": "dqn", "env_id": "case_envs:Plain-v0", "total_timesteps": 120, "learning_starts": 16, "batch_size": 8,
    "buffer_size": 64, "network": {"hidden": [8]}, "checkpoint": {"every": 40},
    "evaluation": {"every": 1000, "episodes": 1, "final_episodes": 1, "num_envs": 1},
})
train(config, [Pauses()])
"""

SHIPPERS_OWN = ("shipper.log", "learning_curve.png")


@dataclass
class LiveRun:
    process: subprocess.Popen[str]
    run_dir: Path
    run_id: str


@pytest.fixture(scope="module")
def live(flow_home: Path) -> Iterator[LiveRun]:
    """A run that is being trained, at step 100, with its checkpoint of step 80 in MLflow."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=flow_home
    )
    assert process.stdout is not None
    try:
        run_dir = Path(process.stdout.readline().strip())
        wait_for(lambda: has_sent(run_dir, "step_000000000080"))
        yield LiveRun(process, run_dir, json.loads((run_dir / "mlflow.json").read_text())["run_id"])
    finally:
        process.kill()
        process.communicate()


def has_sent(run_dir: Path, checkpoint: str) -> bool:
    shipped = run_dir / "shipped.json"
    return shipped.exists() and checkpoint in shipped.read_text() and not (run_dir / ".models").exists()


def contents(run_dir: Path) -> dict[str, tuple[int, int, str]]:
    """Returns inode, time of change and hash of each file, apart from what the live run's own shipper writes."""
    return {
        str(path.relative_to(run_dir)): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(run_dir.rglob("*"))
        if path.is_file() and path.name not in SHIPPERS_OWN
    }


@pytest.mark.parametrize("source", ["RUN_DIR", "RUN_DIR/checkpoints/step_000000000080", "RUN_ID"])
def test_a_resume_of_a_live_run_is_refused_and_changes_nothing_in_it(
    live: LiveRun, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(live.run_dir)
    assert run(["resume", source.replace("RUN_DIR", str(live.run_dir)).replace("RUN_ID", live.run_id)]) == 2
    assert f"the run in {live.run_dir} is training already (process {live.process.pid} on " in capsys.readouterr().err
    assert contents(live.run_dir) == before


def test_a_resume_from_a_downloaded_checkpoint_in_python_is_refused_too(live: LiveRun) -> None:
    before = contents(live.run_dir)
    checkpoint = download_checkpoint(f"runs:/{live.run_id}/checkpoints/step_000000000080")
    with pytest.raises(AlreadyTraining, match=f"the run in {live.run_dir} is training already"):
        resume(checkpoint.path)
    assert contents(live.run_dir) == before


def test_the_resume_flow_is_refused_too(live: LiveRun) -> None:
    before = contents(live.run_dir)
    state = resume_flow(live.run_id, return_state=True)
    assert state.is_failed()
    assert f"the run in {live.run_dir} is training already" in str(state.message)
    assert contents(live.run_dir) == before


def test_the_live_run_ends_undisturbed_afterwards(live: LiveRun) -> None:
    live.process.communicate("\n", timeout=LIMIT)
    assert live.process.returncode == 0
    assert json.loads((live.run_dir / "status.json").read_text())["status"] == "FINISHED"
    assert open_checkpoint(live.run_dir / "checkpoints" / "step_000000000120").num_timesteps == 120
