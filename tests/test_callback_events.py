"""What callbacks reach: steps, environments, the policy and evaluations; on every algorithm, and over resumes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from level_envs import CallsMethod, RaisesLevel

from rl_training.api.train_and_resume import train
from rl_training.errors import UserError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.experiment.registry import register_algorithm
from rl_training.runtime.callbacks import Callback, CallbackError, TrainerState
from rl_training.runtime.checkpoint import find_checkpoint, load_policy_state, open_checkpoint, policy_sha256
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls
from tests.test_curriculum import settings

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

MANAGER = DefaultExperimentManager()
CROSS_ENTROPY = {
    "algo": "cross_entropy",
    "env_id": "level_envs:Levels-v0",
    "num_envs": 4,
    "total_timesteps": 160,
    "logging": {"every": 16},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def custom(**fields: Any) -> Any:
    import cross_entropy

    register_algorithm(cross_entropy.SPEC)  # again, because another test may have imported it first
    evaluation = {"every": 80, "episodes": 2, "final_episodes": 2, "video": False}
    return config_from_mapping({**CROSS_ENTROPY, "evaluation": evaluation, **fields})


def any_algorithm(algo: str, **fields: Any) -> Any:
    return custom(**fields) if algo == "cross_entropy" else settings(algo, **fields)


ALGORITHMS = pytest.mark.parametrize("algo", ["ppo", "dqn", "cross_entropy"])


class Infos(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.infos: list[Any] = []
        self.others: list[Any] = []

    def on_step(self, state: TrainerState) -> None:
        self.steps.append(state.num_timesteps)
        self.infos.append([dict(info) for info in state.infos])

    def on_update_end(self, state: TrainerState) -> None:
        self.others.append(state.infos)


@ALGORITHMS
def test_each_step_is_seen_with_its_infos(algo: str) -> None:
    infos = Infos()
    config = any_algorithm(algo)
    result = MANAGER.setup(config, [infos]).train()
    envs = config.num_envs
    assert infos.steps == list(range(envs, result.num_timesteps + 1, envs))
    assert infos.infos[:3] == [[{}] * envs] * 3
    assert infos.infos[3] == [{"is_success": True}] * envs  # episodes have four steps
    assert set(map(len, infos.others)) == {0}


def test_runs_are_the_same_with_and_without_a_callback_that_sees_each_step() -> None:
    without, having = (MANAGER.setup(settings(), callbacks).train() for callbacks in ([], [Infos()]))
    assert weights(without) == weights(having)


def weights(result: TrainResult) -> str:
    assert result.checkpoint is not None
    return policy_sha256(load_policy_state(open_checkpoint(result.checkpoint)))


class FailsAtStep(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: TrainerState) -> None:
        if state.num_timesteps == self.step:
            raise OSError("no ink")


@ALGORITHMS
def test_an_error_at_a_step_saves_the_step_and_a_resume_is_exact(algo: str) -> None:
    whole = MANAGER.setup(any_algorithm(algo)).train()
    failed = MANAGER.setup(any_algorithm(algo), [FailsAtStep(64)])
    with pytest.raises(CallbackError, match=r"FailsAtStep\.on_step raised OSError: no ink"):
        failed.train()
    assert find_checkpoint(failed.run.run_dir).num_timesteps == 64
    assert weights(MANAGER.resume(failed.run.run_dir).train()) == weights(whole)


class Acts(Callback):
    """Acts with the policy at each update and evaluation."""

    def __init__(self) -> None:
        self.actions: list[list[int]] = []
        self.evaluation: Any = None

    def on_update_end(self, state: TrainerState) -> None:
        assert state.policy is not None
        observations = [np.array([t, 0, 0, 0.5], np.float32) for t in range(4)]
        self.actions.append([int(action) for action in state.policy.act(observations)])
        assert state.policy.observation_space.shape == (4,)

    def on_eval_end(self, state: TrainerState) -> None:
        self.evaluation = state.evaluation


@ALGORITHMS
def test_the_policy_is_the_current_one_and_acting_changes_nothing(algo: str) -> None:
    acts = Acts()
    result = MANAGER.setup(any_algorithm(algo), [acts]).train()
    assert weights(result) == weights(MANAGER.setup(any_algorithm(algo)).train())
    from rl_training.runtime.workflows import load_policy

    assert result.checkpoint is not None
    observations = [np.array([t, 0, 0, 0.5], np.float32) for t in range(4)]
    assert acts.actions[-1] == [int(action) for action in load_policy(result.checkpoint).act(observations)]
    assert acts.evaluation.numbers == {"is_success": (1.0, 1.0)}
    assert (len(acts.evaluation.seeds), acts.evaluation.lengths, acts.evaluation.cut) == (2, (4, 4), 0)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_attributes_and_options_that_a_callback_sets_are_exact_over_a_resume(algo: str) -> None:
    whole = MANAGER.setup(settings(algo), [RaisesLevel()]).train()
    assert weights(whole) != weights(MANAGER.setup(settings(algo)).train())
    for polls in (24, 60, 90):
        stopped = MANAGER.setup(settings(algo), [RaisesLevel()], stop=StopAfterPolls(polls)).train()
        done = MANAGER.resume(stopped.run_dir, [RaisesLevel()]).train()
        assert weights(done) == weights(whole)
        assert "inexact" not in json.loads((done.run_dir / "metadata.json").read_text())


def test_a_method_that_a_callback_calls_is_on_the_record_of_the_run() -> None:
    summary = train(settings(checkpoint={"every": 48}), [CallsMethod()], track=False)
    expected = [{"num_timesteps": 48, "fresh_episodes": [], "changed": [], "environments": ["call: raise_level"]}]
    assert list(summary.inexact) == expected
    assert json.loads((summary.run_dir / "metadata.json").read_text())["inexact"] == expected
    assert open_checkpoint(summary.checkpoint).manifest.extra["inexact"] == expected
    line = (
        "not exact: at step 48: callbacks changed the environments in ways that no resume repeats (call: raise_level)"
    )
    assert line in summary.lines()
    more = MANAGER.resume(summary.run_dir, [CallsMethod()], total_timesteps=192)
    assert more.train().stop_reason == "completed"
    assert more.inexact[:1] == expected


@pytest.mark.parametrize("vectorization", ["async", "native"])
def test_every_kind_of_environment_can_be_reached(vectorization: str) -> None:
    class Reaches(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            assert state.envs is not None
            assert state.envs.num_envs == 2
            state.envs.set_attr("drift", 0.25)
            assert set(state.envs.get_attr("drift")) == {0.25}
            assert set(state.envs.call("steer", 0.5)) == {0.25}
            assert set(state.envs.get_attr("drift")) == {0.5}

    config = settings(env_id="judged_envs:Told-v0", vectorization=vectorization, total_timesteps=32)
    result = MANAGER.setup(config, [Reaches()]).train()
    (entry,) = json.loads((result.run_dir / "metadata.json").read_text())["inexact"]
    assert entry["environments"] == ["call: steer"]


def test_a_custom_algorithm_has_curricula_and_named_callbacks() -> None:
    stages = [{"attributes": {"level": 1}}, {"success_rate": 0.1, "episodes": 5, "attributes": {"level": 2}}]
    config = custom(curriculum=stages, callbacks=["scripted_envs:Counts"])
    whole = MANAGER.setup(config).train()
    assert whole.metrics["rollout/curriculum_stage"] == 2.0
    stopped = MANAGER.setup(config, stop=StopAfterPolls(30)).train()
    assert 0 < stopped.num_timesteps < 160
    assert weights(MANAGER.resume(stopped.run_dir).train()) == weights(whole)


@pytest.mark.parametrize("needs", ["callback", "curriculum"])
def test_a_custom_loop_that_does_not_report_its_steps_is_named(needs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"curriculum": [{"success_rate": 0.5, "attributes": {"level": 2}}]} if needs == "curriculum" else {}
    trainer = MANAGER.setup(custom(**fields), [Infos()] if needs == "callback" else [])

    def count(step: Any) -> None:
        trainer.progress.num_timesteps += trainer.config.num_envs
        trainer.progress.count(step.episodes)

    monkeypatch.setattr(trainer, "count_step", count)
    with pytest.raises(UserError, match=r"CrossEntropyTrainer does not call count_step\(step\) after each step"):
        trainer.train()
    assert MANAGER.setup(custom()).train().stop_reason == "completed"
