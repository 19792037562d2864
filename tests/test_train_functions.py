"""`train_ppo`, `train_dqn` and `train_sac` refuse unsuitable settings before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError, EnvironmentRefused
from rl_training.runtime.trainers.dqn_trainer import train_dqn
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.runtime.trainers.sac_trainer import train_sac
from tests.off_policy_runs import dqn, sac

Train = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("train", "config", "message"),
    [
        (train_dqn, sac(), "got SACConfig (algo: sac), expected DQNConfig; `train_sac` takes these settings"),
        (train_sac, dqn(), "got DQNConfig (algo: dqn), expected SACConfig; `train_dqn` takes these settings"),
        (train_ppo, dqn(), "got DQNConfig (algo: dqn), expected PPOConfig; `train_dqn` takes these settings"),
    ],
)
def test_another_algorithms_settings_are_refused(train: Train, config: TrainConfig, message: str, home: Path) -> None:
    with pytest.raises(ConfigError) as error:
        train(config)
    assert str(error.value) == message
    assert not home.exists()


@pytest.mark.parametrize(
    ("train", "config", "expected"),
    [
        (train_dqn, dqn("Pendulum-v1"), "dqn needs Discrete"),
        (train_sac, sac("CartPole-v1"), "sac needs a Box with a lower and an upper bound in each dimension"),
        (train_ppo, PPOConfig(env_id="case_envs:NoneReward-v0", total_timesteps=64), "reward"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(train: Train, config: TrainConfig, expected: str, home: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=f"environment {config.env_id} can't be trained on") as error:
        train(config)
    assert expected in str(error.value)
    assert not home.exists()
