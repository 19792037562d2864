"""Training ends early once `evaluation.stop_at_return` is reached by `evaluation.stop_after` evaluations in a row."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_envs import SCRIPTED, Scripted

from rl_training.api.train_and_resume import resume, train
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import find_checkpoint
from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(returns: list[float], **evaluation: Any) -> Any:
    Scripted.returns = list(returns)
    return config_from_mapping({**SCRIPTED, "evaluation": {**SCRIPTED["evaluation"], **evaluation}})


def test_training_ends_at_the_second_evaluation_in_a_row_that_reaches_the_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    summary = train(settings([5.0, 4.0, 5.0, 6.0, 1.0], stop_at_return=5.0), track=False)
    assert (summary.stop_reason, summary.num_timesteps) == ("return_reached", 128)
    assert summary.evaluation is not None  # the held-out evaluation happens as at any other end
    assert summary.evaluation.episodes == 2
    assert summary.lines()[0].startswith("ended early because evaluation.stop_at_return was reached at 128 steps")
    assert (
        "training ends at step 128 of 320: the mean return of 2 evaluations in a row has reached "
        "evaluation.stop_at_return = 5" in caplog.text
    )


def test_stop_after_is_the_number_of_evaluations_that_must_reach_the_return() -> None:
    summary = train(settings([4.0, 5.0], stop_at_return=5.0, stop_after=1), track=False)
    assert (summary.stop_reason, summary.num_timesteps) == ("return_reached", 64)


def test_a_return_that_is_reached_by_the_last_evaluation_completes_the_run() -> None:
    summary = train(settings([5.0], stop_at_return=5.0, stop_after=10), track=False)
    assert (summary.stop_reason, summary.num_timesteps) == ("completed", 320)
    assert summary.evaluation is not None


def test_a_resumed_run_needs_the_return_twice_again_and_continues_until_then() -> None:
    summary = train(settings([5.0, 5.0], stop_at_return=5.0), track=False)
    assert summary.num_timesteps == 64
    assert has_reached_return(find_checkpoint(summary.run_dir))
    Scripted.returns = [5.0, 4.0, 5.0, 5.0]
    again = resume(summary.run_dir, track=False)
    assert (again.run_uid, again.stop_reason, again.num_timesteps) == (summary.run_uid, "return_reached", 192)
    Scripted.returns = [1.0]
    done = resume(summary.run_dir, track=False)
    assert (done.stop_reason, done.num_timesteps) == ("completed", 320)
    assert not has_reached_return(find_checkpoint(summary.run_dir))


class StopsAfterEvaluation(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_eval_end(self, state: TrainerState) -> None:
        if state.num_timesteps == self.step:
            state.request_stop()


def test_an_interrupted_run_ends_at_the_same_evaluation_as_one_without_interruption() -> None:
    stopped = train(settings([5.0], stop_at_return=5.0), [StopsAfterEvaluation(32)], track=False)
    assert (stopped.stop_reason, stopped.num_timesteps) == ("callback", 32)
    resumed = resume(stopped.run_dir, track=False)
    assert (resumed.stop_reason, resumed.num_timesteps) == ("return_reached", 64)


def test_the_count_begins_again_for_another_return() -> None:
    stopped = train(settings([5.0], stop_at_return=4.0), [StopsAfterEvaluation(32)], track=False)
    resumed = resume(stopped.run_dir, track=False, **{"evaluation.stop_at_return": 5.0})
    assert (resumed.stop_reason, resumed.num_timesteps) == ("return_reached", 96)


class StopsInTheLastEvaluation(Callback):
    def on_eval_end(self, state: TrainerState) -> None:
        if state.num_timesteps == state.config.total_timesteps:
            state.request_stop()


def test_a_callback_that_stops_a_complete_run_does_not_prevent_the_held_out_evaluation() -> None:
    summary = train(settings([1.0]), [StopsInTheLastEvaluation()], track=False)
    assert (summary.stop_reason, summary.num_timesteps) == ("completed", 320)
    assert summary.evaluation is not None


def test_a_retry_ends_at_once_after_an_attempt_that_has_reached_the_return() -> None:
    """As a flow run's second process does, if the first one died after training."""
    summary = train(settings([5.0, 5.0], stop_at_return=5.0), track=False)
    trainer = DefaultExperimentManager().resume(summary.run_dir)
    trainer.stop.request("return_reached")
    result = trainer.train()
    assert (result.stop_reason, result.num_timesteps) == ("return_reached", 64)
    assert has_reached_return(find_checkpoint(summary.run_dir))


def test_the_tracked_run_is_finished_and_says_why(tmp_path: Path) -> None:
    summary = train(settings([5.0, 5.0], stop_at_return=5.0), offline=True)
    status = json.loads((summary.run_dir / "status.json").read_text())
    assert (status["status"], status["stop_reason"]) == ("FINISHED", "return_reached")
