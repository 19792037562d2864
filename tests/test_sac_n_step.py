"""SAC's targets of several steps: the value that is learnt counts the entropy at every step, whatever their number."""

import math

import pytest

from rl_training import train_sac
from rl_training.config.algorithms.sac import SACConfig

SETTINGS = {
    "env_id": "idle_envs:Idle-v0",
    "total_timesteps": 1_200,
    "learning_starts": 100,
    "batch_size": 32,
    "train_freq": 1,
    "gamma": 0.5,
    "tau": 0.05,
    "entropy_coef": 1.0,
    "learning_rate": 3e-3,
    "network": {"hidden": [16]},
    "logging": {"every": 100},
    "evaluation": {"every": 9_999, "episodes": 1},
}


@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_the_soft_value_does_not_depend_on_the_number_of_steps(n_step: int) -> None:
    """The best policy is uniform on [-1, 1] with the entropy log 2, of which gamma / (1 - gamma) = 1 is to come."""
    learnt = train_sac(SACConfig(**SETTINGS, n_step=n_step)).metrics["train/q_mean"]
    assert learnt == pytest.approx(math.log(2), abs=0.03)
