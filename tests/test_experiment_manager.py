"""The experiment manager: new runs, resumed runs and forks. A resumed run equals an uninterrupted one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import open_checkpoint, read_best
from rl_training.runtime.checkpoint.downloads import Download, write_download
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def cartpole(**fields: Any) -> PPOConfig:
    base: dict[str, Any] = {
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "rollout_steps": 32,
        "batch_size": 16,
        "epochs": 2,
        "total_timesteps": 320,
        "learning_rate_schedule": "linear",
        "normalization": {"observation": True, "reward": True},
        "logging": {"every": 1},
        "evaluation": {"every": 100, "episodes": 3, "num_envs": 2},
        "checkpoint": {"every": 10_000, "keep_last": 3},
    }
    return PPOConfig.model_validate({**base, **fields})


class Points(Callback):
    """Every metric point that a run records, `time/*` apart."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, int], float] = {}

    def record(self, state: TrainerState) -> None:
        for key, value in state.metrics.items():
            if not key.startswith("time/"):
                self.points[key, state.num_timesteps] = value

    on_collect_end = on_update_end = on_eval_end = record


def sha(result: TrainResult) -> str:
    assert result.checkpoint is not None
    return open_checkpoint(result.checkpoint).policy_sha256


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_run_stopped_anywhere_and_resumed_equals_the_uninterrupted_run(vectorization: str) -> None:
    whole = Points()
    expected = sha(MANAGER.setup(cartpole(), [whole]).train())
    polls = [1, 40, 77, 83, 95, 130, 201, 260] if vectorization == "sync" else [83, 130]
    for count in polls:
        points = Points()
        trainer = MANAGER.setup(cartpole(vectorization=vectorization), [points], stop=StopAfterPolls(count))
        stopped = trainer.train()
        assert stopped.stop_reason == "signal"
        resumed = MANAGER.resume(stopped.run_dir, [points]).train()
        assert (resumed.stop_reason, resumed.num_timesteps) == ("completed", 320)
        assert resumed.run_uid == stopped.run_uid
        assert sha(resumed) == expected, count
        assert points.points == whole.points, count


def test_a_finished_run_is_complete_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    done = MANAGER.setup(cartpole()).train()
    with caplog.at_level("INFO"):
        again = MANAGER.resume(done.run_dir).train()
    assert (again.stop_reason, again.num_timesteps, sha(again)) == ("completed", 320, sha(done))
    assert "is complete at 320 of 320 steps" in caplog.text


def test_a_larger_total_is_a_fork_that_trains_on() -> None:
    done = MANAGER.setup(cartpole()).train()
    assert done.checkpoint is not None
    fork = MANAGER.resume(done.checkpoint, total_timesteps=640).train()
    assert fork.num_timesteps == 640
    assert fork.run_uid != done.run_uid
    assert fork.run_dir != done.run_dir
    origin = json.loads((fork.run_dir / "metadata.json").read_text())["forked_from"]
    assert (origin["run_uid"], origin["num_timesteps"]) == (done.run_uid, 320)
    assert origin["differences"] == ["total_timesteps: 320 -> 640 (may grow)"]


def test_an_earlier_checkpoint_is_a_fork_and_the_run_keeps_what_it_has() -> None:
    done = MANAGER.setup(cartpole(checkpoint={"every": 64, "keep_last": 9})).train()
    earlier = done.run_dir / "checkpoints" / "step_000000000128"
    fork = MANAGER.resume(earlier).train()
    assert fork.run_uid != done.run_uid
    assert sha(fork) == sha(done)
    assert done.checkpoint is not None
    assert done.checkpoint.is_dir()


def test_a_setting_that_must_be_equal_is_refused_with_both_values() -> None:
    done = MANAGER.setup(cartpole()).train()
    with pytest.raises(CheckpointError, match=r"gamma: 0\.99 -> 0\.5"):
        MANAGER.resume(done.run_dir, gamma=0.5)


def test_an_override_that_is_no_setting_is_refused_with_the_nearest() -> None:
    done = MANAGER.setup(cartpole()).train()
    with pytest.raises(ConfigError, match="total_timesteps"):
        MANAGER.resume(done.run_dir, total_timestep=640)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing-here"):
        MANAGER.resume(tmp_path / "nothing-here")


def test_a_run_that_cannot_be_set_up_leaves_no_directory(home: Path) -> None:
    with pytest.raises(Exception, match="NoSuchEnv"):
        MANAGER.setup(cartpole(env_id="NoSuchEnv-v0"))
    assert not list((home / "runs").iterdir())


def downloaded(checkpoint: Path, folder: Path, *, newest: bool, run_dir: Path) -> Path:
    """A copy of a checkpoint as a download from MLflow leaves it."""
    copy = folder / "checkpoints" / checkpoint.name
    shutil.copytree(checkpoint, copy)
    write_download(open_checkpoint(copy), Download(newest=newest, run_dir=run_dir))
    return copy


def test_the_newest_checkpoint_from_mlflow_continues_its_own_run(tmp_path: Path) -> None:
    expected = sha(MANAGER.setup(cartpole()).train())
    stopped = MANAGER.setup(cartpole(), stop=StopAfterPolls(83)).train()
    assert stopped.checkpoint is not None
    here = downloaded(stopped.checkpoint, tmp_path / "here", newest=True, run_dir=stopped.run_dir)
    elsewhere = downloaded(stopped.checkpoint, tmp_path / "elsewhere", newest=True, run_dir=tmp_path / "no such place")
    earlier = downloaded(stopped.checkpoint, tmp_path / "earlier", newest=False, run_dir=stopped.run_dir)

    away = MANAGER.resume(elsewhere).train()
    assert (away.run_uid, sha(away)) == (stopped.run_uid, expected)
    assert away.run_dir not in (stopped.run_dir, tmp_path / "no such place")

    fork = MANAGER.resume(earlier).train()
    assert fork.run_uid != stopped.run_uid

    same = MANAGER.resume(here).train()
    assert (same.run_dir, same.run_uid, sha(same)) == (stopped.run_dir, stopped.run_uid, expected)


def test_a_run_that_resumes_elsewhere_has_its_checkpoint_there_from_the_start(tmp_path: Path) -> None:
    config = cartpole(evaluation={"every": 64, "episodes": 1})
    expected = sha(MANAGER.setup(config).train())
    stopped = MANAGER.setup(config, stop=StopAfterPolls(83)).train()
    assert stopped.checkpoint is not None
    assert stopped.checkpoint == stopped.best_checkpoint  # it was evaluated at this very step
    elsewhere = downloaded(stopped.checkpoint, tmp_path / "elsewhere", newest=True, run_dir=tmp_path / "no such place")
    away = MANAGER.resume(elsewhere)
    # It may be killed at once: its starting checkpoint is in its own directory, and recorded there as the best.
    (here,) = (away.run.run_dir / "checkpoints").glob("step_*")
    assert open_checkpoint(here).policy_sha256 == sha(stopped)
    best = read_best(away.run.run_dir / "checkpoints")
    assert best is not None
    assert best[0].path == here
    again = MANAGER.resume(away.run.run_dir).train()
    assert (again.run_uid, again.run_dir, sha(again)) == (stopped.run_uid, away.run.run_dir, expected)


def test_neither_names_nor_file_times_of_checkpoints_count() -> None:
    config = cartpole(checkpoint={"every": 64, "keep_last": 9}, evaluation={"every": 64, "episodes": 1})
    expected = sha(MANAGER.setup(config).train())
    stopped = MANAGER.setup(config, stop=StopAfterPolls(83)).train()
    assert stopped.checkpoint is not None
    root, step = stopped.checkpoint.parent, stopped.num_timesteps
    stopped.checkpoint.rename(root / "step_000000000001")
    (root / "step_000000000000").rename(root / "step_000000999999")
    (root / "step_000000999999" / "manifest.json").touch()
    resumed = MANAGER.resume(stopped.run_dir)
    assert resumed.num_timesteps == step
    result = resumed.train()
    assert (result.run_uid, sha(result)) == (stopped.run_uid, expected)


def test_a_downloaded_checkpoint_takes_the_place_of_a_damaged_one_of_its_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sha(MANAGER.setup(cartpole()).train())
    stopped = MANAGER.setup(cartpole(), stop=StopAfterPolls(83)).train()
    assert stopped.checkpoint is not None
    copy = downloaded(stopped.checkpoint, tmp_path / "copy", newest=True, run_dir=stopped.run_dir)
    (stopped.checkpoint / "trainer.pt").write_bytes(b"")
    result = MANAGER.resume(copy).train()
    assert (result.run_dir, sha(result)) == (stopped.run_dir, expected)
    aside = stopped.checkpoint.with_name(f"damaged-{stopped.checkpoint.name}")
    assert f"set aside as {aside}" in caplog.text
    assert aside.is_dir()
