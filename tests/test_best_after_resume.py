"""The best checkpoint means the best one after a resume too, whatever was lost in between."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scripted_envs import SCRIPTED, Scripted, StopsAt

from rl_training.api.train_and_resume import resume, train
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from rl_training.runtime.trainer import TrainResult

MANAGER = DefaultExperimentManager()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def stopped_after(returns: list[float], **fields: Any) -> TrainResult:
    """Trains until as many evaluations were made as there are returns, 32 steps apart, and 16 steps further."""
    Scripted.returns = list(returns)
    config = config_from_mapping({**SCRIPTED, "rollout_steps": 8, "batch_size": 16, **fields})
    return MANAGER.setup(config, [StopsAt(32 * len(returns) + 16)]).train()


def resumed(run_dir: Path, returns: list[float]) -> tuple[TrainResult, list[tuple[int, float]]]:
    """Resumes; returns the result and the step and mean return of each checkpoint that became the best."""
    Scripted.returns = list(returns)
    trainer = MANAGER.resume(run_dir, [StopsAt(160)])
    best: list[tuple[int, float]] = []
    note = trainer._note_saved

    def listen(checkpoint: Checkpoint, is_best: bool) -> None:
        if is_best:
            best.append((checkpoint.num_timesteps, recorded(run_dir)["return_mean"]))
        note(checkpoint, is_best)

    trainer._saver._on_complete = listen
    return trainer.train(), best


def recorded(run_dir: Path) -> Any:
    return json.loads((run_dir / "checkpoints" / "best.json").read_text())


def lose_record(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "best.json").unlink()


def damage_record(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "best.json").write_text("{")


def lose_checkpoint(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints" / recorded(run_dir)["checkpoint"])


def lose_both(run_dir: Path) -> None:
    lose_checkpoint(run_dir)
    lose_record(run_dir)


@pytest.mark.parametrize("lose", [lose_record, damage_record])
def test_a_lost_record_is_written_again_from_the_checkpoints(lose: Any) -> None:
    run_dir = stopped_after([10.0, 4.0]).run_dir
    before = recorded(run_dir)
    assert (before["num_timesteps"], before["return_mean"]) == (32, 10.0)
    lose(run_dir)
    result, best = resumed(run_dir, [5.0, 7.0])
    assert best == []
    assert recorded(run_dir) == before
    assert result.best_checkpoint == run_dir / "checkpoints" / before["checkpoint"]
    assert result.lost_best is None


@pytest.mark.parametrize("lose", [lose_checkpoint, lose_both])
def test_after_the_best_checkpoint_is_lost_a_worse_one_is_not_the_best(
    lose: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = stopped_after([10.0, 4.0]).run_dir
    lose(run_dir)
    result, best = resumed(run_dir, [5.0, 7.0])
    assert best == []
    assert result.best_checkpoint is None
    assert result.lost_best is not None
    assert (result.lost_best["return_mean"], result.lost_best["num_timesteps"]) == (10.0, 80)
    assert "a later one is the best once its mean return is at least 10" in caplog.text
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["lost_best"] == [result.lost_best]


def test_after_the_best_checkpoint_is_lost_a_better_one_is_the_best() -> None:
    run_dir = stopped_after([10.0, 4.0]).run_dir
    lose_both(run_dir)
    result, best = resumed(run_dir, [5.0, 12.0])
    assert best == [(128, 12.0)]
    assert result.best_checkpoint == run_dir / "checkpoints" / "step_000000000128"
    assert result.lost_best is None


def test_a_checkpoint_that_was_evaluated_but_not_the_best_does_not_take_the_place_of_the_lost_one() -> None:
    """The newest checkpoint is that of an evaluation, as one is after a process that ended between two writes."""
    run_dir = stopped_after([10.0, 4.0], checkpoint={"every": 32}).run_dir
    for name in ("step_000000000032", "step_000000000080"):
        shutil.rmtree(run_dir / "checkpoints" / name)
    assert find_checkpoint(run_dir).num_timesteps == 64  # evaluated with 4.0
    lose_record(run_dir)
    result, best = resumed(run_dir, [5.0, 7.0, 6.0])
    assert best == []
    assert (result.best_checkpoint, not (run_dir / "checkpoints" / "best.json").exists()) == (None, True)


def test_the_best_checkpoint_is_the_one_with_the_best_return_after_a_second_resume() -> None:
    """A resume saves the step that it begins from again; that step stays the best one."""
    run_dir = stopped_after([4.0, 10.0]).run_dir
    shutil.rmtree(run_dir / "checkpoints" / "step_000000000080")
    Scripted.returns = [5.0]
    trainer = MANAGER.resume(run_dir)
    trainer.stop.request("signal")
    assert trainer.train().num_timesteps == 64
    lose_record(run_dir)
    result, best = resumed(run_dir, [5.0, 7.0, 6.0])
    assert best == []
    assert recorded(run_dir)["num_timesteps"] == 64
    assert result.best_checkpoint is not None
    assert open_checkpoint(result.best_checkpoint).num_timesteps == 64


def test_the_summary_says_that_the_best_checkpoint_was_lost() -> None:
    config = config_from_mapping({**SCRIPTED, "rollout_steps": 8, "batch_size": 16})
    Scripted.returns = [10.0, 4.0]
    stopped = train(config, [StopsAt(80)], track=False)
    lose_both(stopped.run_dir)
    Scripted.returns = [5.0, 6.0]
    summary = resume(stopped.run_dir, callbacks=[StopsAt(160)], track=False)
    assert summary.to_dict()["lost_best"] == {
        "num_timesteps": 80,
        "return_mean": 10.0,
        "reason": f"{stopped.run_dir}/checkpoints/best.json is missing",
    }
    assert summary.best_checkpoint is None
    said = "the best checkpoint, with a mean return of 10.00, was missing when the run was resumed at step 80"
    assert sum(line.startswith(said) for line in summary.lines()) == 1
