"""Velocities are left out of observations, and nothing else is changed."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_env
from rl_training.envs.wrappers import HideVelocities
from rl_training.errors import EnvironmentRefused


@pytest.mark.parametrize(
    ("env_id", "kept"),
    [("CartPole-v1", [0, 2]), ("MountainCar-v0", [0]), ("MountainCarContinuous-v0", [0]), ("Pendulum-v1", [0, 1])],
)
def test_what_is_left_are_the_positions(env_id: str, kept: list[int]) -> None:
    plain, hidden = gym.make(env_id), HideVelocities(gym.make(env_id))
    np.testing.assert_array_equal(hidden.observation_space.low, plain.observation_space.low[kept])
    np.testing.assert_array_equal(hidden.observation_space.high, plain.observation_space.high[kept])
    plain.action_space.seed(0)
    np.testing.assert_array_equal(hidden.reset(seed=5)[0], plain.reset(seed=5)[0][kept])
    for _ in range(5):
        action = plain.action_space.sample()
        observation, *rest = hidden.step(action)
        expected, *expected_rest = plain.step(action)
        np.testing.assert_array_equal(observation, expected[kept])
        assert rest == expected_rest
        assert observation in hidden.observation_space
        assert observation.dtype == np.float32


def test_an_environment_whose_velocities_are_not_known_is_refused() -> None:
    config = PPOConfig(env_id="Acrobot-v1", wrappers=["HideVelocities"], total_timesteps=1_000)
    message = "wrapper 'HideVelocities' does not fit environment 'Acrobot-v1': .*got Acrobot-v1, whose velocities"
    with pytest.raises(EnvironmentRefused, match=message):
        make_env(config, 0)
