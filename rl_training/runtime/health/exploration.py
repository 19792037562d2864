"""How much a policy explores, as a share of the most that it could: 1 for a new policy, near 0 for a certain one.

PPO over discrete actions: entropy / largest entropy. PPO over `Box` actions: standard deviation / its initial value.
SAC and TQC: exp(entropy / A) / 2 for A action dimensions, the geometric mean over them of the width of the interval
with this entropy, relative to the bounds [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.settings import TrainConfig


def measure_exploration(config: TrainConfig, space: gym.Space[Any], metrics: Mapping[str, float]) -> float | None:
    """Returns the share; None if the algorithm has no such metric, or the space leaves no choice.

    Args:
        config: The settings.
        space: The space of actions.
        metrics: Metrics of an update, of which `train/std` and `train/entropy` are used.
    """
    if isinstance(config, MaximumEntropyConfig) and "train/entropy" in metrics:
        return math.exp(metrics["train/entropy"] / math.prod(space.shape or (1,))) / 2.0
    if not isinstance(config, PPOConfig):
        return None
    if "train/std" in metrics:
        return metrics["train/std"] / math.exp(config.network.initial_log_std)
    largest = compute_largest_entropy(space)
    return metrics["train/entropy"] / largest if largest and "train/entropy" in metrics else None


def compute_largest_entropy(space: gym.Space[Any]) -> float | None:
    """Returns the entropy of uniform actions, in nats; None for a space that is not discrete."""
    match space:
        case gym.spaces.Discrete():
            return math.log(int(space.n))
        case gym.spaces.MultiDiscrete():
            return float(np.log(space.nvec).sum())
        case gym.spaces.MultiBinary():
            return math.prod(space.shape) * math.log(2.0)
    return None
