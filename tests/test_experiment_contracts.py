"""The contract that every registered algorithm keeps, so that callers need not know which algorithm they use."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from rl_training import AlgorithmSpec, DefaultExperimentManager, TrainConfig, get_algorithm, list_algorithms
from rl_training.errors import UserError
from rl_training.experiment import registry
from rl_training.experiment.registry import register_algorithm
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy

BUILT_IN = ["dqn", "ppo", "sac", "td3", "tqc"]
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"env_id": "CartPole-v1", "learning_starts": 64},
    "ppo": {"env_id": "CartPole-v1", "num_envs": 2, "rollout_steps": 32, "batch_size": 32},
    "sac": {"env_id": "Pendulum-v1", "learning_starts": 64, "batch_size": 32, "network": {"hidden": [16]}},
    "td3": {"env_id": "Pendulum-v1", "learning_starts": 64, "batch_size": 32, "network": {"hidden": [16]}},
    "tqc": {"env_id": "Pendulum-v1", "learning_starts": 64, "batch_size": 32, "network": {"hidden": [16]}},
}


@pytest.fixture(autouse=True)
def own_home_and_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "_registered", {})
    yield
    registry._load_entry_points.cache_clear()


def settings(name: str) -> TrainConfig:
    base = {"total_timesteps": 128, "logging": {"every": 64}, "evaluation": {"every": 64, "episodes": 2, "num_envs": 2}}
    return get_algorithm(name).config_type.model_validate({**base, **SETTINGS[name]})


def test_the_built_in_algorithms_are_listed() -> None:
    assert list_algorithms() == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_settings_name_their_algorithm(name: str) -> None:
    spec = get_algorithm(name)
    assert spec.name == settings(name).algo == name
    assert issubclass(spec.config_type, TrainConfig)


@pytest.mark.parametrize("name", BUILT_IN)
def test_setting_up_training_resuming_and_judging_need_no_name(name: str) -> None:
    manager, config = DefaultExperimentManager(), settings(name)
    trainer = manager.setup(config)
    assert isinstance(trainer, Trainer)
    result = trainer.train()
    assert (result.num_timesteps, result.stop_reason) == (128, "completed")
    assert {"eval/return_mean", "eval/ci_low", "rollout/episodes"} <= set(result.metrics)
    assert manager.resume(result.run_dir, total_timesteps=192).train().num_timesteps == 192
    assert result.checkpoint is not None
    assert evaluate_checkpoint(result.checkpoint, episodes=2).episodes == 2
    policy, env = load_policy(result.checkpoint), gym.make(config.env_id)
    assert (policy.observation_space, policy.action_space) == (env.observation_space, env.action_space)
    (action,) = policy.act([env.reset(seed=0)[0]])
    assert env.action_space.contains(action)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_train_function_takes_settings_callbacks_and_a_checkpoint(name: str) -> None:
    spec = get_algorithm(name)
    done = spec.train(settings(name))
    again = spec.train(settings(name), (), done.checkpoint)
    assert (again.run_uid, again.num_timesteps) == (done.run_uid, 128)


@pytest.mark.parametrize("name", BUILT_IN)
def test_spaces_that_fit_are_no_fault_and_others_are_sentences(name: str) -> None:
    spec, env = get_algorithm(name), gym.make(SETTINGS[name]["env_id"])
    assert list(spec.check_spaces(env.observation_space, env.action_space)) == []
    (sentence,) = spec.check_spaces(env.observation_space, gym.spaces.Text(3))
    assert "Text" in sentence


def test_another_algorithm_is_found_by_its_name_and_its_name_is_taken() -> None:
    mine = replace(get_algorithm("ppo"), name="mine")
    register_algorithm(mine)
    register_algorithm(mine)  # again the same is no fault: a module may be imported twice
    assert get_algorithm("mine") is mine
    assert list_algorithms() == ["dqn", "mine", "ppo", "sac", "td3", "tqc"]
    with pytest.raises(ValueError, match="algorithm 'ppo' is registered already"):
        register_algorithm(replace(get_algorithm("dqn"), name="ppo"))


@pytest.mark.parametrize("offered_as", ["a spec", "a function"])
def test_a_package_offers_its_algorithm_by_an_entry_point(offered_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(get_algorithm("ppo"), name="theirs")
    point = SimpleNamespace(load=lambda: spec if offered_as == "a spec" else lambda: spec)
    groups = {"rl_training.algorithms": [point]}
    monkeypatch.setattr(registry, "entry_points", lambda group: groups.get(group, []))
    registry._load_entry_points.cache_clear()
    assert get_algorithm("theirs") is spec


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="unknown algorithm 'a2c'; known: dqn, ppo, sac, td3, tqc"):
        get_algorithm("a2c")


def test_a_spec_has_the_contracts_fields() -> None:
    fields = ["name", "config_type", "train", "make_trainer", "check_spaces", "load_policy"]
    assert list(inspect.signature(AlgorithmSpec).parameters) == fields
