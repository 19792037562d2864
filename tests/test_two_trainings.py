"""A process trains one run at a time, and other uses of a policy neither change the training nor are changed by it."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training import DefaultExperimentManager, TrainResult, evaluate_checkpoint, resume, train_ppo
from rl_training.api.train_and_resume import resume_training, train
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import RunFailed, UserError
from rl_training.networks.threads import PAYS, THREADS
from rl_training.runs.single_training import reserve_training
from rl_training.runtime import callbacks
from rl_training.runtime.checkpoint import open_checkpoint
from tests.trainings import PPO


def settings(folder: Path | None = None, **changes: Any) -> PPOConfig:
    return PPOConfig(env_id="CartPole-v1", run_dir=folder, **{**PPO, **changes})


def hash_of(result: TrainResult) -> str:
    assert result.checkpoint is not None
    return open_checkpoint(result.checkpoint).policy_sha256


class Once(callbacks.Callback):
    """Calls a function once, in the middle of training."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.called = call, False

    def on_update_end(self, state: callbacks.TrainerState) -> None:
        if not self.called:
            self.called = True
            self.call()


def here(call: Callable[[], object]) -> list[BaseException]:
    with pytest.raises(UserError) as caught:
        call()
    return [caught.value]


def in_a_thread(call: Callable[[], object]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    return errors


@pytest.mark.parametrize("begin", ["train", "train_ppo", "resume", "resume_training", "trainer"])
@pytest.mark.parametrize("where", [here, in_a_thread])
def test_a_second_training_is_refused_in_one_line_and_leaves_nothing(
    begin: str, where: Callable[..., list[BaseException]], tmp_path: Path
) -> None:
    alone = train_ppo(settings(tmp_path / "alone"))
    assert alone.checkpoint is not None
    prepared = DefaultExperimentManager().setup(settings(tmp_path / "prepared"))
    second: dict[str, Callable[[], object]] = {
        "train": lambda: train(settings(tmp_path / "second"), track=False),
        "train_ppo": lambda: train_ppo(settings(tmp_path / "second")),
        "resume": lambda: resume(
            tmp_path / "alone", track=False, total_timesteps=256, run_dir=str(tmp_path / "second")
        ),
        "resume_training": lambda: resume_training(tmp_path / "alone", {"total_timesteps": 256}, track=False),
        "trainer": prepared.train,
    }
    errors: list[BaseException] = []
    beside = train_ppo(settings(tmp_path / "first"), [Once(lambda: errors.extend(where(second[begin])))])
    (error,) = errors
    assert isinstance(error, UserError)
    assert str(error).startswith("another training runs in this process, and a process has one at a time; ")
    assert "\n" not in str(error)
    assert not (tmp_path / "second").exists()
    assert hash_of(beside) == hash_of(alone)
    # A trainer that was refused has lost nothing, and one that was made and waits keeps nobody out.
    assert hash_of(prepared.train()) == hash_of(alone)


def test_a_training_that_failed_makes_room_for_the_next(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(RunFailed):
        train_ppo(settings(tmp_path / "fails"), [Once(fail)])
    with pytest.raises(UserError):
        train_ppo(settings(tmp_path / "fails"))  # its directory is taken
    assert train_ppo(settings(tmp_path / "next")).num_timesteps == 192


@pytest.mark.slow
def test_evaluating_beside_a_training_changes_neither(tmp_path: Path) -> None:
    wide = {"threads": 2, "network": {"hidden": [1200, 1200]}, "evaluation": {"episodes": 8, "video": False}}
    small = {"num_envs": 2, "rollout_steps": 16, "batch_size": 32, "total_timesteps": 160, "epochs": 2}
    alone = train_ppo(settings(tmp_path / "alone", **small, **wide))
    assert alone.checkpoint is not None
    checkpoint = alone.checkpoint
    expected = evaluate_checkpoint(checkpoint, episodes=8)

    ended, evaluations = threading.Event(), []

    def evaluate() -> None:
        while not ended.is_set():
            evaluations.append(evaluate_checkpoint(checkpoint, episodes=8))

    thread = threading.Thread(target=evaluate)
    watched = Once(thread.start)
    beside = train_ppo(settings(tmp_path / "beside", **small, **wide), [watched])
    ended.set()
    thread.join(120)
    assert not thread.is_alive()
    assert hash_of(beside) == hash_of(alone)
    assert evaluations
    assert all(evaluation == expected for evaluation in evaluations)


def test_another_thread_leaves_the_helper_to_the_training() -> None:
    seen: list[int] = []

    def note() -> None:
        seen.append(threading.get_ident())

    with THREADS.using(2):
        assert in_a_thread(lambda: THREADS.call(PAYS, note, note)) == []
        assert len(set(seen)) == 1
        seen.clear()
        THREADS.call(PAYS, note, note)
        assert len(set(seen)) == 2


def test_a_forked_process_begins_alone() -> None:
    with warnings.catch_warnings(), reserve_training(), THREADS.using(2):
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a fork leaves behind, from Python 3.12 on
        child = os.fork()
        if child == 0:
            code = 1
            try:
                THREADS.call(PAYS, lambda: None, lambda: None)
                with reserve_training():
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
