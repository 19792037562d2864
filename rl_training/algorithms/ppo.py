"""Proximal Policy Optimisation (Schulman et al. 2017), with the implementation details of Huang et al. 2022.

The update is in `ppo_learner.py`. Shapes: N environments, O observation dims, A action dims, K outputs of the policy
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.block_acting import BlockActing
from rl_training.algorithms.ppo_learner import PPOLearner, forbid
from rl_training.algorithms.space_checks import find_encoding_faults
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import take_features, take_mask
from rl_training.networks.actor_critic import ActorCritic
from rl_training.networks.distributions import make_distribution
from rl_training.seeding import generator


class PPO(PPOLearner):
    """Acts, and learns from rollouts."""

    network: ActorCritic

    def __init__(
        self, config: PPOConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks with weights from the seed's `init` stream."""
        network, rng = config.network, generator(config.seed, "init")
        distribution = make_distribution(codec.space, network.initial_log_std)
        self.network = ActorCritic(
            encoder.features, distribution, network.hidden, network.activation, rng, network.body
        )
        self.acting = BlockActing(self.network, self.draw_noise, lambda: self.state.action_rng)
        super().__init__(config, distribution, self.network, device)

    def act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws an action in each environment; `acting` draws the same ones faster.

        Returns:
            For observations [N, *O]: actions [N, *A] (unclipped), their log-probabilities float32 [N], and values
            float32 [N].
        """
        (outputs_NK, values_N), noise_1NK = self._evaluate(observation), self.draw_noise(1, len(observation))
        actions = self.distribution.choose(outputs_NK, noise_1NK[0])
        return actions, self.distribution.log_probs(outputs_NK[None], actions[None], noise_1NK)[0], values_N

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the most probable action in each environment, [N, *A]."""
        return self.distribution.mode(self._evaluate(observation)[0])

    def policy_outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns the parameters of the distribution of actions, [N, K], valid until the next evaluation."""
        return self._evaluate(observation)[0]

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Returns V(observation), float32 [N]."""
        return self._evaluate(observation)[1]

    def _evaluate(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the policy's outputs [N, K], with masks applied, and the values [N]."""
        outputs_NK, values_N = self.network.act(take_features(observation))
        return forbid(outputs_NK, take_mask(observation), np), values_N

    def begin_episodes(self, env_indices: Sequence[int]) -> None:
        """Forgets the episodes of some environments, because others begin; this policy remembers none."""

    def make_buffer(self, num_envs: int, encoder: ObservationEncoder, codec: ActionCodec) -> RolloutBuffer:
        """Returns a buffer for the rollouts of a number of environments."""
        size = (self.config.rollout_steps, num_envs)
        return RolloutBuffer(*size, encoder.shape, encoder.dtype, codec.shape, codec.dtype)


def check_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> list[str]:
    """Returns the reasons why PPO can't train on these spaces, one sentence each; actions need no bounds."""
    return find_encoding_faults(observation_space, action_space)
