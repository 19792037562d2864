"""Whether a rollout fits into memory: the arithmetic in the message, and what would fit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rl_training import train_ppo
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data import rollout_memory
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.rollout_memory import check_memory
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError

GB = 10**9
MANY = ObservationEncoder(gym.spaces.Discrete(5_000_000))
CHOICE = ActionCodec(gym.spaces.Discrete(3))


def config(rollout_steps: int, num_envs: int, **settings: object) -> PPOConfig:
    given = {"env_id": "CartPole-v1", "total_timesteps": 10_000, "batch_size": 8, **settings}
    return PPOConfig(rollout_steps=rollout_steps, num_envs=num_envs, **given)


def test_the_message_has_the_arithmetic_and_a_length_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_memory(config(128, 8), MANY, CHOICE, available=10 * GB)
    # One-hot: 5,000,000 x 4 bytes. 1,024 x 20,000,034 = 20.48e9; .9 * 10e9 / (8 x 20,000,034) = 56.2
    assert str(caught.value) == (
        "rollout_steps x num_envs: 128 x 8 x (20,000,000 + 8 + 6 x 4 + 2) bytes (encoded observation "
        "Discrete(5000000), action, six numbers, two flags) = 20.5 GB, and this process may use 10.0 GB, of which a "
        "tenth is left to everything else; rollout_steps 56 would fit, or fewer num_envs"
    )
    check_memory(config(56, 8), MANY, CHOICE, available=10 * GB)


def test_where_no_step_fits_the_message_names_environments_and_observations() -> None:
    with pytest.raises(ConfigError, match="not even one step of 64 environments fits; lower num_envs, or make obs"):
        check_memory(config(16, 64), MANY, CHOICE, available=GB)


def test_the_bound_is_sharp() -> None:
    # 16 x 4 x (4 x 4 + 8 + 26) = 3,200 bytes, with a tenth beside them
    encoder = ObservationEncoder(gym.spaces.Box(-1, 1, (4,), np.float32))
    check_memory(config(16, 4), encoder, CHOICE, available=3_556)
    with pytest.raises(ConfigError):
        check_memory(config(16, 4), encoder, CHOICE, available=3_555)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)),
        (gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.MultiDiscrete([3, 4])),
        (gym.spaces.Discrete(9), gym.spaces.Box(-1, 1, (6,), np.float32)),
        (
            gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, (3, 36, 36), np.uint8), "gear": gym.spaces.Discrete(3)}),
            gym.spaces.MultiBinary(2),
        ),
    ],
)
def test_the_arithmetic_is_what_the_buffer_takes(observation: gym.Space, action: gym.Space) -> None:
    encoder, codec = ObservationEncoder(observation), ActionCodec(action)
    buffer = RolloutBuffer(16, 4, encoder.shape, encoder.dtype, codec.shape, codec.dtype)
    taken = sum(array.nbytes for array in vars(buffer).values() if isinstance(array, np.ndarray))
    usable = -(-taken * 10 // 9)
    check_memory(config(16, 4), encoder, codec, available=usable)
    with pytest.raises(ConfigError):
        check_memory(config(16, 4), encoder, codec, available=usable - 2)


def test_training_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_memory, "measure_available_memory", lambda: 1_000)
    with pytest.raises(ConfigError, match=r"rollout_steps x num_envs: 16 x 4 x \(16 \+ 8 \+ 6 x 4 \+ 2\) bytes"):
        train_ppo(config(16, 4, evaluation={"episodes": 1}))
