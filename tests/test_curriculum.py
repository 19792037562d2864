"""Curricula: when a stage begins, what it changes, and that a resume is exact at every point."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from level_envs import Watches

from rl_training.api.train_and_resume import resume, train
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import load_policy_state, load_trainer_state, open_checkpoint, policy_sha256
from rl_training.runtime.loop_parts.curriculum import Curriculum
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()
COMMON: dict[str, Any] = {
    "env_id": "level_envs:Levels-v0",
    "total_timesteps": 160,
    "num_envs": 2,
    "network": {"hidden": [8]},
    "logging": {"every": 16},
    "evaluation": {"every": 80, "episodes": 2, "final_episodes": 2, "video": False},
}
OFF_POLICY = {"buffer_size": 100, "learning_starts": 20, "batch_size": 8, "train_freq": 4}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "ppo", "rollout_steps": 16, "batch_size": 16, "epochs": 1},
    "dqn": {"algo": "dqn", **OFF_POLICY},
}
BY_STEP = [
    {"attributes": {"level": 1}},
    {"from_step": 22, "attributes": {"level": 2}, "reset_options": {"start": 3.0}},
    {"from_step": 100, "attributes": {"level": 3}},
]
BY_SUCCESS = [
    {"success_rate": 1.0, "episodes": 4, "attributes": {"level": 1}},
    {"success_rate": 0.5, "episodes": 6, "attributes": {"level": 2}, "reset_options": {"start": 2.0}},
    {"from_step": 120, "attributes": {"level": 3}},
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(algo: str = "ppo", **fields: Any) -> Any:
    return config_from_mapping({**COMMON, **ALGORITHMS[algo], **fields})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_stage_begins_at_exactly_its_step(algo: str) -> None:
    watches = Watches()
    MANAGER.setup(settings(algo, curriculum=BY_STEP), [watches]).train()
    levels = {step: level for step, level, _ in watches.seen}
    # Each step counts 2. The step that begins at 22 is the first of the second stage, and is seen when it has ended.
    assert [levels[step] for step in (2, 22, 24, 100, 102, 160)] == [(1, 1), (1, 1), (2, 2), (2, 2), (3, 3), (3, 3)]
    starts = {step: start for step, _, start in watches.seen}
    # Episodes take 8 steps of the run; the one that began at 16 keeps its options, and the next begins at 24.
    assert [starts[step] for step in (22, 24, 98, 102, 104)] == [
        (0.0, 0.0),
        (3.0, 3.0),
        (3.0, 3.0),
        (3.0, 3.0),
        (0.0, 0.0),
    ]


def test_a_stage_begins_when_the_latest_episodes_of_the_stage_before_have_the_success_rate() -> None:
    watches = Watches()
    MANAGER.setup(settings(curriculum=BY_SUCCESS), [watches]).train()
    levels = {step: level for step, level, _ in watches.seen}
    # All episodes succeed at level 0: the fourth ends at step 16. The next stage needs six more: at 40 at the earliest.
    assert [levels[step] for step in (16, 18, 40)] == [(0, 0), (1, 1), (1, 1)]
    assert levels[160] == (3, 3)


def test_the_stage_is_a_metric_and_is_counted_from_one() -> None:
    result = MANAGER.setup(settings(curriculum=BY_STEP)).train()
    assert result.metrics["rollout/curriculum_stage"] == 3.0
    waiting = [{"from_step": 10_000, "attributes": {"level": 2}}]
    assert MANAGER.setup(settings(curriculum=waiting)).train().metrics["rollout/curriculum_stage"] == 0.0
    assert "rollout/curriculum_stage" not in MANAGER.setup(settings()).train().metrics


def test_evaluation_plays_without_the_curriculum() -> None:
    """At level 3 each of the four steps would pay 0.3 less, so no return could be a whole number."""
    summary = train(settings(curriculum=[{"attributes": {"level": 3}}]), track=False)
    assert summary.evaluation is not None
    assert all(episode == int(episode) for episode in summary.evaluation.returns)
    own = {**COMMON["evaluation"], "env_kwargs": {"tells": False}}
    told = train(settings(curriculum=[{"attributes": {"level": 3}}], evaluation=own), track=False)
    assert told.evaluation is not None
    assert told.evaluation.success_rate is None


def final_state(result: TrainResult) -> tuple[str, str, Any]:
    assert result.checkpoint is not None
    checkpoint = open_checkpoint(result.checkpoint)
    trainer = load_trainer_state(checkpoint)
    envs = [snapshot["attributes"] for snapshot in trainer["envs"]["snapshots"]]
    return (
        policy_sha256(load_policy_state(checkpoint)),
        json.dumps({**trainer["progress"], "envs": repr(envs), "curriculum": trainer["curriculum"]}),
        {name: value for name, value in result.metrics.items() if not name.startswith("time/")},
    )


@pytest.mark.parametrize("stages", [BY_STEP, BY_SUCCESS], ids=["step", "success"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_resume_is_exact_at_every_point(algo: str, stages: Any) -> None:
    config = settings(algo, curriculum=stages)
    whole = final_state(MANAGER.setup(config).train())
    for polls in (11, 24, 26, 47, 90):
        stopped = MANAGER.setup(config, stop=StopAfterPolls(polls)).train()
        assert 0 < stopped.num_timesteps < 160
        again = MANAGER.resume(stopped.run_dir, stop=StopAfterPolls(15)).train()
        done = MANAGER.resume(again.run_dir).train()
        assert done.run_uid == stopped.run_uid
        assert final_state(done) == whole, f"stopped at {stopped.num_timesteps} and {again.num_timesteps}"


@pytest.mark.parametrize("vectorization", ["async", "split"])
def test_a_resume_with_worker_processes_is_exact(vectorization: str) -> None:
    whole = final_state(MANAGER.setup(settings(curriculum=BY_SUCCESS)).train())
    config = settings(curriculum=BY_SUCCESS, vectorization=vectorization)
    stopped = MANAGER.setup(config, stop=StopAfterPolls(47)).train()
    assert 0 < stopped.num_timesteps < 160
    assert final_state(MANAGER.resume(stopped.run_dir).train()) == whole


class Drifts(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step(self, state: TrainerState) -> None:
        assert state.envs is not None
        self.seen.append((state.num_timesteps, set(state.envs.get_attr("drift")), state.envs.get_attr("seen")[0][-1]))


def test_native_environments_stay_in_their_stage_over_a_resume() -> None:
    """Their episodes begin again at a resume, which is recorded as ever; attributes and options do not."""
    stages = [
        {"from_step": 20, "attributes": {"drift": 0.5}, "reset_options": {"start": 2.0}},
        {"success_rate": 0.01, "episodes": 500, "attributes": {"drift": 0.7}},
    ]
    config = settings(env_id="judged_envs:Told-v0", vectorization="native", curriculum=stages)
    stopped = MANAGER.setup(config, stop=StopAfterPolls(47)).train()
    assert 20 < stopped.num_timesteps < 150
    drifts = Drifts()
    done = MANAGER.resume(stopped.run_dir, [drifts]).train()
    assert {frozenset(drift) for _, drift, _ in drifts.seen} == {frozenset({0.5})}
    assert drifts.seen[-1][2] == {"start": 2.0}
    assert done.metrics["rollout/curriculum_stage"] == 1.0


def test_a_success_rate_that_no_info_tells_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    config = settings(curriculum=BY_SUCCESS, env_kwargs={"tells": False})
    result = MANAGER.setup(config).train()
    assert result.metrics["rollout/curriculum_stage"] == 0.0
    assert caplog.text.count("curriculum: stage 1 waits for a success rate") == 1


def test_the_curriculum_may_not_change_on_resume() -> None:
    stopped = MANAGER.setup(settings(curriculum=BY_STEP), stop=StopAfterPolls(47)).train()
    with pytest.raises(CheckpointError, match="curriculum"):
        resume(stopped.run_dir, curriculum=BY_SUCCESS, track=False)


@pytest.mark.parametrize("state", [{"stage": 4, "successes": []}, {"stage": 1, "successes": [2]}, {"stage": -1}, None])
def test_a_place_outside_of_the_curriculum_is_refused(state: Any) -> None:
    curriculum = Curriculum(settings(curriculum=BY_STEP), MagicMock(num_envs=2))
    with pytest.raises(CheckpointError, match="curriculum"):
        curriculum.load_state_dict(state)
    assert curriculum.stage == 0


def test_a_value_that_is_a_list_is_the_attribute_of_each_environment() -> None:
    """As many values as environments, which are not shared out."""

    class Looks(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            assert state.envs is not None
            assert state.envs.get_attr("goal") == ({"at": [3, 4]}, {"at": [3, 4]})

    stages = [{"attributes": {"goal": {"at": [3, 4]}}}, {"from_step": 8, "attributes": {"label": ["a", "b"]}}]

    class LooksLater(Callback):
        def on_train_end(self, state: TrainerState) -> None:
            assert state.envs is not None
            assert state.envs.get_attr("label") == (["a", "b"], ["a", "b"])

    config = settings(env_id="judged_envs:Told-v0", curriculum=stages)
    assert MANAGER.setup(config, [Looks(), LooksLater()]).train().stop_reason == "completed"


def test_a_trainer_without_environments_refuses_a_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = MANAGER.setup(settings(curriculum=BY_STEP))
    monkeypatch.setattr(type(trainer), "_find_envs", lambda self: None)
    with pytest.raises(ConfigError, match=r"curriculum: the trainer of ppo has no `envs` of the class TrainingEnvs"):
        trainer.train()
