"""From a checkpoint on disk to a policy that acts and an evaluation, for every algorithm."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from waiting import LIMIT

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.serialization import WrittenConfig
from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.experiment import registry
from rl_training.experiment.builtin import SPECS
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import register_algorithm
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.checkpoint import open_checkpoint, write_checkpoint
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, resolve_local_checkpoint
from rl_training.seeding import episode_seeds


def train(run_dir: Path, **settings: Any) -> Any:
    config = PPOConfig.model_validate(
        {
            "env_id": "CartPole-v1",
            "num_envs": 2,
            "rollout_steps": 32,
            "batch_size": 32,
            "epochs": 1,
            "total_timesteps": 128,
            "run_dir": run_dir,
            "evaluation": {"every": 1_000, "episodes": 2, "final_episodes": 4, "num_envs": 2, "seed": 9},
            "checkpoint": {"every": 64, "keep_last": 3},
            **settings,
        }
    )
    trainer = DefaultExperimentManager().setup(config)
    return trainer, trainer.train()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(tmp_path_factory.mktemp("trained") / "run", normalization={"observation": True})


def test_the_loaded_policy_acts_as_the_trained_one(trained: Any) -> None:
    trainer, result = trained
    loaded = load_policy(result.checkpoint)
    assert loaded.observation_space == gym.make("CartPole-v1").observation_space
    assert loaded.action_space == gym.spaces.Discrete(2)
    observations = list(np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
    actions = loaded.act(observations)
    assert actions == trainer.policy().act(observations)
    assert set(actions) == {0, 1}


def test_an_evaluation_from_disk_equals_the_one_in_memory(trained: Any) -> None:
    trainer, result = trained
    seeds = episode_seeds(9, "held_out", 4)
    expected = evaluate_policy(trainer.policy(), trainer.config, seeds)
    for source in (result.checkpoint, str(result.checkpoint), result.run_dir, open_checkpoint(result.checkpoint)):
        assert evaluate_checkpoint(source) == expected
    assert expected.seeds == tuple(seeds)


def test_episodes_seed_and_seeds_choose_what_is_played(trained: Any) -> None:
    checkpoint = trained[1].checkpoint
    assert evaluate_checkpoint(checkpoint, episodes=2).seeds == tuple(episode_seeds(9, "held_out", 2))
    assert evaluate_checkpoint(checkpoint, episodes=2, seed=1).seeds == tuple(episode_seeds(1, "held_out", 2))
    assert evaluate_checkpoint(checkpoint, seeds=[5, 6, 5]).seeds == (5, 6, 5)
    assert not {*episode_seeds(9, "held_out", 100)} & {*episode_seeds(9, "evaluation", 100)}


def test_settings_can_be_overridden_for_an_evaluation(trained: Any) -> None:
    checkpoint = trained[1].checkpoint
    result = evaluate_checkpoint(checkpoint, config_overrides={"max_episode_steps": 3, "evaluation.num_envs": 1})
    assert set(result.lengths) == {3}
    assert evaluate_checkpoint(checkpoint, config_overrides=["evaluation.final_episodes=2"]).episodes == 2
    with pytest.raises(ConfigError, match=r"max_epsiode_steps.*max_episode_steps"):
        evaluate_checkpoint(checkpoint, config_overrides={"max_epsiode_steps": 3})


def test_an_evaluation_hears_a_stop(trained: Any) -> None:
    stop = StopFlag()
    stop.request("signal")
    with pytest.raises(StopTraining):
        evaluate_checkpoint(trained[1].checkpoint, stop=stop)


def test_a_run_directory_stands_for_its_newest_good_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, result = train(tmp_path / "run")
    newest = resolve_local_checkpoint(result.run_dir)
    assert (newest.path, newest.num_timesteps) == (result.checkpoint, 128)
    assert resolve_local_checkpoint(result.run_dir / "checkpoints") == newest
    assert resolve_local_checkpoint(newest) is newest
    (newest.path / "policy.pt").write_bytes(b"<html>502</html>")
    caplog.clear()
    assert resolve_local_checkpoint(result.run_dir).num_timesteps == 64
    assert f"skipped: {newest.path}/policy.pt is damaged" in caplog.text
    with pytest.raises(CheckpointError, match=r"policy.pt is damaged.*newest good checkpoint is .*step_000000000064"):
        evaluate_checkpoint(newest.path)


def test_a_run_without_a_good_checkpoint_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    _, result = train(tmp_path / "run")
    for path in (result.run_dir / "checkpoints").glob("step_*"):
        (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        load_policy(result.run_dir)
    message = str(caught.value)
    assert message.startswith(f"{result.run_dir} has no good checkpoint; ")
    assert message.count("has no manifest.json") == 3
    assert "\n" not in message


FRESH = """
import json, sys
from rl_training.runtime.workflows import evaluate_checkpoint
print(json.dumps(evaluate_checkpoint(sys.argv[1], episodes=3).to_dict()))
"""


def test_an_environment_of_a_plug_in_is_found_by_a_fresh_process(tmp_path: Path) -> None:
    """The checkpoint holds the id with its module; the environment's limit of 25 steps holds."""
    _, result = train(tmp_path / "run", env_id="trialplug:trialplug/Walk-v0")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(result.run_dir)], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    there = json.loads(done.stdout)
    assert there == evaluate_checkpoint(result.run_dir, episodes=3).to_dict()
    assert max(there["lengths"]) <= 25


class AlwaysOneConfig(PPOConfig):
    algo: str = "always_one"  # type: ignore[assignment]


class AlwaysOne:
    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def act(self, observations: Any) -> list[int]:
        return [1] * len(observations)


def test_the_registry_loads_policies_of_any_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_algorithm(
        replace(
            SPECS["ppo"], name="always_one", config_type=AlwaysOneConfig, load_policy=lambda checkpoint: AlwaysOne()
        )
    )
    config = AlwaysOneConfig(env_id="case_envs:Plain-v0", total_timesteps=1_000)
    names = {"always_one": config, "never_registered": config}
    for name in names:
        write_checkpoint(
            tmp_path / name,
            config=WrittenConfig(config),
            run_uid="u",
            algorithm=name,
            num_timesteps=1,
            policy={},
            trainer={},
        )
    result = evaluate_checkpoint(tmp_path / "always_one", episodes=2, allow_modules=["case_envs"])
    assert result.returns == (10.0, 10.0)
    with pytest.raises(
        UserError, match=r"unknown algorithm 'never_registered'; known: always_one, dqn, ppo, sac, td3, tqc"
    ):
        load_policy(tmp_path / "never_registered")
