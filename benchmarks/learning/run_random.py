"""Plays held-out episodes with uniformly random actions, and prints one line of JSON.

It takes one argument: the settings that decide the environment, as JSON (`RandomPolicy.settings` in `peers.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.learning.runs import EPISODES
from rl_training.config.settings import TrainConfig
from rl_training.envs.factory import make_env
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import draw_allowed, take_mask
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.seeding import episode_seeds


class UniformPolicy:
    """Acts uniformly at random, whatever it observes, among the actions that a mask allows if there is one."""

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], mask_key: str | None = None
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.action_space.seed(0)
        self._encoder = None if mask_key is None else ObservationEncoder(observation_space, mask_key)

    def act(self, observations: Sequence[Any]) -> list[Any]:
        """Returns an action for each observation."""
        allowed = None if self._encoder is None else take_mask(self._encoder.encode_list(observations))
        if allowed is None:
            return [self.action_space.sample() for _ in observations]
        codec, rng = ActionCodec(self.action_space), self.action_space.np_random
        parts = np.split(allowed, np.cumsum(codec.nvec)[:-1], axis=1)
        return list(codec.to_env(np.stack([draw_allowed(part, rng) for part in parts], axis=1)))


def main() -> None:
    config = config_from_mapping(json.loads(sys.argv[1]) | {"algo": "ppo", "total_timesteps": 1_000})
    print(json.dumps(evaluate_random(config)))


def evaluate_random(config: TrainConfig) -> dict[str, Any]:
    """Returns the held-out evaluation of random actions."""
    env = make_env(config.for_evaluation(), 0)
    policy = UniformPolicy(env.observation_space, env.action_space, config.mask_key)
    env.close()
    result = evaluate_policy(policy, config, episode_seeds(config.evaluation.seed, "held_out", EPISODES)).to_dict()
    names = ("return_mean", "return_std", "ci_low", "ci_high", "episodes", "returns")
    return {"seed": 0, **{name: result[name] for name in names}}


if __name__ == "__main__":
    main()
