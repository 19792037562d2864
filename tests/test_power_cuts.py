"""Whatever a power cut leaves of a run, the run resumes from it and ends as it would have ended."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow_store import ship_all, stored_points
from power_cuts import Cut, Disk, restore_database

from rl_training import run_layout
from rl_training.errors import CheckpointError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import list_checkpoints, newest_good, open_checkpoint
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.tracking.mlflow_store import URI_VARIABLE, connect, resolve_tracking_uri
from rl_training.tracking.orphaned_runs import resolve_end_status
from rl_training.tracking.session import start_tracking
from rl_training.tracking.shipping.shipment import Shipment

MANAGER = DefaultExperimentManager()

COMMON = {
    "env_id": "case_envs:Plain-v0",
    "num_envs": 1,
    "network": {"hidden": [4]},
    "logging": {"every": 8},
    "checkpoint": {"every": 16, "keep_last": 1},
    "evaluation": {"every": 24, "episodes": 1, "num_envs": 1, "video": False},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**COMMON, "algo": "ppo", "total_timesteps": 48, "rollout_steps": 8, "batch_size": 8, "epochs": 1},
    "dqn": {**COMMON, "algo": "dqn", "total_timesteps": 48, "learning_starts": 8, "batch_size": 4, "buffer_size": 24},
}

SAMPLE = int(os.environ.get("RL_TRAINING_POWER_CUTS", "10"))
"""Cuts of each run that are resumed from; 0 for all of them (`make power-cuts`)."""


class Ships(Callback):
    """Sends the run as the shipper does, and at moments that are the same each time."""

    def __init__(self) -> None:
        self.shipment: Shipment | None = None

    def on_update_end(self, state: TrainerState) -> None:
        if self.shipment is None:
            self.shipment = Shipment(state.run_dir, resolve_tracking_uri())
            self.shipment.open()
        while self.shipment.ship():
            pass


def trained(trainer: Trainer, *callbacks: Callback) -> TrainResult:
    """Trains to the end, with a record that can be sent."""
    run_dir, start = trainer.run.run_dir, trainer.num_timesteps
    with start_tracking(run_dir, trainer.config, offline=True, from_step=start) as session:
        for callback in (session.callback, *callbacks):
            trainer.callbacks.append(callback)
        return trainer.train()


Points = dict[tuple[str, int], float]


def points(run_dir: Path, *, to: int = 10**9) -> Points:
    """Returns the points of the record up to a step, without times; none may be there twice."""
    found: Points = {}
    for raw in (run_dir / run_layout.METRICS).read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n") or b"\0" in raw:
            break
        line = json.loads(raw)
        assert line["event"] != "difference"
        new = {(key, line["step"]): value for key, value in line["metrics"].items() if line["step"] <= to}
        assert not new.keys() & found.keys()
        found |= new
    return {key: value for key, value in found.items() if not key[0].startswith("time/")}


@dataclass(frozen=True)
class Recorded:
    """An uninterrupted run, and the states that power cuts could have left."""

    home: Path
    database: Path
    run_dir: Path
    run_uid: str
    policy_sha256: str
    points: Points
    cuts: list[Cut]

    def restore(self, cut: Cut) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir()
        cut.restore(self.home)
        restore_database(self.database, cut.database)


@pytest.fixture(scope="module", params=list(SETTINGS))
def recorded(request: pytest.FixtureRequest, store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("power")
    home, database = folder / "home", folder / "store" / "mlflow.db"
    home.mkdir()
    database.parent.mkdir()
    shutil.copy(store_template, database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(home))
        patch.setenv(URI_VARIABLE, f"sqlite:///{database}")
        disk = Disk(home, database)
        with disk.watching():
            result = trained(MANAGER.setup(config_from_mapping(SETTINGS[request.param])), Ships())
        assert result.checkpoint is not None
        policy = open_checkpoint(result.checkpoint).policy_sha256
        yield Recorded(home, database, result.run_dir, result.run_uid, policy, points(result.run_dir), disk.cuts)


def is_whole(path: Path) -> bool:
    open_checkpoint(path)
    return True


def resume_from(cut: Cut, recorded: Recorded) -> int | None:
    """Resumes from the state after a cut and checks the result; returns the step, None if there is no checkpoint."""
    recorded.restore(cut)
    run_dir = recorded.run_dir
    found, skipped = list_checkpoints(run_dir / "checkpoints")
    if not found:
        with pytest.raises(CheckpointError, match=r"before its first checkpoint|holds no run|does not exist"):
            MANAGER.resume(run_dir)
        return None
    # Nothing is missing that a checkpoint stands on.
    assert all(is_whole(checkpoint.path) for checkpoint in found)
    assert all("a save that did not finish" in line for line in skipped)
    step = found[0].num_timesteps
    for name in ("metadata.json", "tracking.json"):
        assert json.loads((run_dir / name).read_text())["run_uid"] == recorded.run_uid
    assert (run_dir / "config.yaml").read_text() == found[0].config_text()
    if step > 0:
        assert points(run_dir, to=step) == {at: value for at, value in recorded.points.items() if at[1] <= step}
    for evaluated in range(24, step + 1, 24):
        path = run_dir / "artifacts" / "evaluations" / f"step_{evaluated:012d}.json"
        assert json.loads(path.read_text())["num_timesteps"] == evaluated
    # It resumes, in the same run, and ends as it would have.
    result = trained(MANAGER.resume(run_dir))
    assert (result.run_uid, result.run_dir) == (recorded.run_uid, run_dir)
    newest, _ = newest_good(run_dir / "checkpoints")
    assert newest is not None
    assert newest.policy_sha256 == recorded.policy_sha256
    assert points(run_dir) == recorded.points
    # In the end all is in MLflow, and nothing twice.
    run_id = ship_all(run_dir, lambda: resolve_end_status(run_dir), uri=resolve_tracking_uri()).address.run_id
    client = connect(resolve_tracking_uri())
    stored = stored_points(client, run_id)
    assert {(name, at): value for name, at, value, _ in stored if not name.startswith("time/")} == recorded.points
    assert client.get_run(run_id).info.status == "FINISHED"
    (experiment,) = client.search_experiments(filter_string="name != 'Default'")
    assert len(client.search_runs([experiment.experiment_id])) == 1
    return step


@pytest.mark.slow
def test_every_cut_resumes_to_the_very_end(recorded: Recorded) -> None:
    every = max(1, len(recorded.cuts) // SAMPLE) if SAMPLE else 1
    sample = recorded.cuts[every // 2 :: every]
    steps = []
    for cut in sample:
        try:
            steps.append(resume_from(cut, recorded))
        except BaseException as error:
            error.add_note(f"cut {cut.moment}")
            raise
    assert None in steps
    # How many cuts there are differs a little from run to run, so a sample may pass over a checkpoint.
    assert len({16, 32, 48} & set(steps)) >= (2 if SAMPLE else 3)
