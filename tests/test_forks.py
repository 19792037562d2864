"""Forks of population-based training: a new run continues the complete state of another one, with other settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.config.resume_rules import EXPLORABLE, Rule, find_differences, get_rule, is_explorable
from rl_training.config.serialization import WrittenConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runs.metadata import read_metadata
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.checkpoint import (
    Checkpoint,
    keep_pause,
    load_trainer_state,
    open_checkpoint,
    policy_sha256,
    to_plain,
)
from rl_training.runtime.loop_parts.run_origin import ForkOf
from rl_training.runtime.run_utils import create_training_run, open_training_run, save_training_checkpoint
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer
from tests.off_policy_runs import Events, dqn, sac, td3, tqc

MANAGER = DefaultExperimentManager()
COMMON: dict[str, Any] = {
    "num_envs": 2,
    "total_timesteps": 300,
    "learning_rate_schedule": "linear",
    "network": {"hidden": [16]},
    "normalization": {"observation": True, "reward": True},
    "logging": {"every": 20},
    "evaluation": {"every": 70, "episodes": 2, "num_envs": 2},
}
OFF_POLICY = {**COMMON, "learning_starts": 60, "buffer_size": 120, "batch_size": 16, "train_freq": 4}
PPO = PPOConfig.model_validate(
    {**COMMON, "env_id": "CartPole-v1", "rollout_steps": 32, "batch_size": 16, "num_envs": 2, "epochs": 2}
)
CONFIGS: dict[str, TrainConfig] = {
    "ppo": PPO,
    "dqn": dqn("CartPole-v1", target_update_every=30, **OFF_POLICY),
    "sac": sac("Pendulum-v1", max_episode_steps=25, **OFF_POLICY),
    "sac with a fixed weight": sac("Pendulum-v1", max_episode_steps=25, entropy_coef=0.1, **OFF_POLICY),
    "td3": td3("Pendulum-v1", max_episode_steps=25, **OFF_POLICY),
    "tqc": tqc("Pendulum-v1", max_episode_steps=25, **OFF_POLICY),
}
CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {
        "learning_rate": 0.002, "learning_rate_schedule": "constant", "gamma": 0.9, "batch_size": 24,
        "max_grad_norm": 0.3, "entropy_coef": 0.01, "normalization": {"clip": 5.0}, "epochs": 3, "clip_range": 0.1,
        "clip_range_schedule": "linear", "value_clip": 0.2, "gae_lambda": 0.9, "value_coef": 0.7,
        "normalize_advantage": False, "target_kl": 0.5, "adam_epsilon": 1e-6,
    },
    "dqn": {
        "learning_rate": 0.002, "learning_rate_schedule": "constant", "gamma": 0.9, "batch_size": 24,
        "max_grad_norm": 0.3, "normalization": {"clip": 5.0}, "n_step": 3, "double": True, "target_update_every": 50,
        "exploration": {"start": 0.9, "end": 0.1, "fraction": 0.8},
    },
    "sac": {
        "learning_rate": 0.002, "learning_rate_schedule": "constant", "gamma": 0.95, "batch_size": 24,
        "normalization": {"clip": 5.0}, "n_step": 2, "tau": 0.02, "target_entropy": -0.5,
    },
    "sac with a fixed weight": {"entropy_coef": 0.2},
    "tqc": {"learning_rate": 0.002, "learning_rate_schedule": "constant", "drop_quantiles": 0},
    "td3": {
        "learning_rate": 0.002, "learning_rate_schedule": "constant", "tau": 0.02, "policy_delay": 3,
        "exploration_noise": 0.3, "target_noise": 0.1, "target_noise_clip": 0.4,
    },
}  # fmt: skip
"""Every setting that a fork may change, by the algorithm that has it."""


class PausesAt(Events):
    """Stops a run at the first step from a given one on, between two updates."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_step(self, state: TrainerState) -> None:
        if state.num_timesteps >= self.step:
            state.request_stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def pause(config: TrainConfig, step: int = 148) -> Checkpoint:
    """Trains a run to a step in the middle of an episode and, with PPO, of a rollout; returns its last checkpoint."""
    return finish(MANAGER.setup(config, [PausesAt(step)]))


def finish(trainer: Trainer) -> Checkpoint:
    """Trains a run to its end; returns its last checkpoint."""
    result = trainer.train()
    assert result.checkpoint is not None
    return open_checkpoint(result.checkpoint)


def fork(checkpoint: Checkpoint, config: TrainConfig, callback: Callback, **lineage: Any) -> Checkpoint:
    """Trains a fork to its end; returns its last checkpoint."""
    return finish(MANAGER.setup(config, [callback], checkpoint=ForkOf(checkpoint, **lineage)))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fork_with_equal_settings_continues_to_the_bytes_of_its_origin(name: str) -> None:
    paused, forked, resumed = pause(CONFIGS[name]), Events(), Events()
    trainers = MANAGER.setup(CONFIGS[name], [forked], checkpoint=ForkOf(paused)), MANAGER.resume(paused, [resumed])
    end, origin = map(finish, trainers)

    assert (end.num_timesteps, origin.num_timesteps) == (300, 300)
    assert end.run_uid != origin.run_uid == paused.run_uid
    assert end.policy_sha256 == origin.policy_sha256
    assert forked.points == resumed.points
    assert any(key.startswith("train/") for key, _ in forked.points)
    own, other = (load_trainer_state(checkpoint) for checkpoint in (end, origin))
    for part in ("algorithm", "envs"):
        assert policy_sha256(to_plain(own[part], part)) == policy_sha256(to_plain(other[part], part))
    buffers = [trainer.buffer for trainer in trainers if isinstance(trainer, OffPolicyTrainer)]
    assert len(buffers) == (0 if name == "ppo" else 2)
    for part in buffers[0].arrays() if buffers else ():
        assert np.array_equal(buffers[0].arrays()[part], buffers[1].arrays()[part])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fork_continues_with_every_setting_that_it_may_change(name: str) -> None:
    before, events = CONFIGS[name], Events()
    after = before.replace(**CHANGES[name])
    differences = find_differences(before, after, "explore")
    assert {difference.rule for difference in differences} == {Rule.MAY_CHANGE}
    assert set(CHANGES[name]) == {difference.key.partition(".")[0] for difference in differences}

    end = fork(pause(before), after, events)
    assert end.num_timesteps == 300
    assert f"learning_rate: {CHANGES[name].get('learning_rate', 0.001)}" in end.config_text()
    if "learning_rate" in CHANGES[name]:
        assert set(events.values("train/learning_rate").values()) == {0.002}
    if name == "sac with a fixed weight":
        assert list(events.values("train/entropy_coef").values()) == pytest.approx([0.2] * 8, rel=1e-15)
    if name == "dqn":  # epsilon falls from 0.9 to 0.1 over 240 steps, and the newest step before 160 is 158
        assert events.values("train/exploration_rate")[160] == pytest.approx(0.9 - 0.8 * 158 / 240)


def test_every_setting_that_a_fork_may_change_is_tried_here() -> None:
    tried = {key for changes in CHANGES.values() for key in changes} - {"normalization"} | {"normalization.clip"}
    assert set(EXPLORABLE) == tried


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("ppo", {"network": {"hidden": [8]}}, "network.hidden"),
        ("ppo", {"num_envs": 4}, "num_envs"),
        ("ppo", {"rollout_steps": 64}, "rollout_steps"),
        ("ppo", {"seed": 3}, "seed"),
        ("ppo", {"normalization": {"reward": False}}, "normalization.reward"),
        ("dqn", {"buffer_size": 240}, "buffer_size"),
        ("dqn", {"train_freq": 2}, "train_freq"),
        ("dqn", {"gradient_steps": 2}, "gradient_steps"),
        ("dqn", {"learning_starts": 80}, "learning_starts"),
        ("sac", {"entropy_coef": 0.1}, "entropy_coef"),
        ("sac with a fixed weight", {"entropy_coef": "auto"}, "entropy_coef"),
    ],
)
def test_a_fork_is_refused_another_shape_of_its_state(name: str, changes: dict[str, Any], named: str) -> None:
    differences = find_differences(CONFIGS[name], CONFIGS[name].replace(**changes), "explore")
    assert [(difference.key, difference.rule) for difference in differences] == [(named, Rule.MUST_EQUAL)]


def test_a_refused_fork_leaves_nothing_behind(home: Path) -> None:
    paused = pause(PPO)
    before = sorted(home.rglob("*"))
    with pytest.raises(CheckpointError, match=r"num_envs: 2 -> 4 \(must be equal\)"):
        MANAGER.setup(PPO.replace(num_envs=4), checkpoint=ForkOf(paused))
    assert sorted(home.rglob("*")) == before


def test_only_a_fork_may_change_hyperparameters() -> None:
    assert {get_rule(key, "explore") for key in EXPLORABLE} == {Rule.MAY_CHANGE}
    assert {get_rule(key) for key in EXPLORABLE} == {Rule.MUST_EQUAL}
    assert get_rule("exploration.end", "explore") is Rule.MAY_CHANGE
    assert get_rule("total_timesteps", "explore") is Rule.MAY_GROW
    assert is_explorable("entropy_coef", [0.1, 0.2])
    assert not is_explorable("entropy_coef", [0.1, "auto"])
    assert not is_explorable("network.hidden", [[8], [16]])


def test_every_explorable_setting_is_a_field_of_an_algorithm() -> None:
    fields = {
        key
        for kind in (PPOConfig, OffPolicyConfig, DQNConfig, SACConfig, TD3Config, TQCConfig)
        for key in kind.model_fields
    }
    assert {key.partition(".")[0] for key in EXPLORABLE} <= fields


def test_a_fork_has_its_origin_and_lineage_on_record() -> None:
    paused = pause(PPO)
    lineage = ({"trial": 1, "run_uid": "a" * 32, "num_timesteps": 70, "params": {"gamma": 0.98}},)
    end = fork(paused, PPO.replace(gamma=0.9), Events(), lineage=lineage)
    assert read_metadata(end.path.parent.parent)["forked_from"] == {
        "run_uid": paused.run_uid,
        "num_timesteps": 148,
        "policy_sha256": paused.policy_sha256,
        "differences": ["gamma: 0.99 -> 0.9 (may change)"],
        "renamed": False,
        "lineage": list(lineage),
    }


def test_a_fork_of_a_newest_checkpoint_with_equal_settings_is_a_run_of_its_own() -> None:
    paused = pause(PPO)
    trainer = MANAGER.setup(PPO, checkpoint=ForkOf(paused))
    trainer.train()
    assert trainer.run.run_dir != paused.path.parent.parent
    assert sorted(paused.path.parent.glob("step_*"))[-1] == paused.path


def save(run_dir: Path, steps: list[int], config: PPOConfig) -> set[str]:
    """Writes checkpoints at these steps into a new run or that of the directory; returns the names of all of them."""
    run = open_training_run(run_dir) if run_dir.exists() else create_training_run(config)
    for step in steps:
        save_training_checkpoint(run, WrittenConfig(config), num_timesteps=step, policy={}, trainer={})
    return {path.name.lstrip("step_0") for path in run.checkpoints.glob("step_*")}


def test_the_two_newest_pauses_outlive_the_checkpoints_that_follow(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = PPO.replace(run_dir=str(run_dir), checkpoint={"keep_last": 1})
    root = run_dir / "checkpoints"
    assert save(run_dir, [1, 2], config) == {"2"}
    keep_pause(root, 2)
    keep_pause(root, 2)
    assert save(run_dir, [3, 4], config) == {"2", "4"}
    keep_pause(root, 4)
    assert save(run_dir, [5, 6], config) == {"2", "4", "6"}
    keep_pause(root, 6)
    assert save(run_dir, [7], config) == {"4", "6", "7"}
    assert json.loads((root / "kept.json").read_text()) == {"num_timesteps": [4, 6]}


def test_a_damaged_record_of_pauses_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text('{"num_timesteps": ["../x"]}')
    with pytest.raises(CheckpointError, match=r"kept\.json is damaged: .* remove it to continue without it"):
        keep_pause(tmp_path, 2)
