"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018).

Shapes: N environments, B batch, O observation dims, A action dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.continuous.actor_critic import ActorCriticState, OffPolicyActorCritic, find_space_faults
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import FlatParameters, Layers
from rl_training.seeding import generator


@dataclass
class TD3State(ActorCriticState):
    """Everything that training changes besides the policy's weights; a checkpoint holds all of these fields."""

    target_policy: FlatParameters
    """The weights of the target policy."""


class TD3(OffPolicyActorCritic):
    """Acts, and learns from replayed transitions, with a deterministic policy and twin critics."""

    config: TD3Config
    state: TD3State
    ACTOR_MEASUREMENTS = ("actor_loss",)

    def __init__(
        self, config: TD3Config, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks; the target policy starts as a copy. See `OffPolicyActorCritic` for the arguments."""
        super().__init__(config, encoder, codec, device, actor_outputs=codec.size, critic_outputs=(1, 1))
        self.target_actor = self._make_actor(encoder, codec.size, generator(config.seed, "init"))
        self.state = TD3State(**vars(self.state), target_policy=FlatParameters(self.target_actor, device))
        self.state.target_policy.vector.copy_(self.parameters.vector)

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the policy's action in each environment, float32 [N, A]."""
        actions: np.ndarray = np.tanh(self.policy_outputs(observation))
        return actions

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Adds Gaussian noise to the policy's actions, and clips them to [-1, 1]; float32 [N, A]."""
        noise_NA = rng.standard_normal(outputs.shape, dtype=np.float32)
        actions: np.ndarray = np.tanh(outputs) + np.float32(self.config.exploration_noise) * noise_NA
        return actions.clip(-1.0, 1.0)

    def _update(self, batch: ReplayBatch, learning_rate: float) -> dict[str, float]:
        """Takes a gradient step of the critics, and after every `policy_delay` of them one of the policy.

        The critics' number of steps decides, so a resumed run keeps the rhythm.
        """
        backend, state = self.backend, self.state
        shape = (len(batch), self.action_dims)
        noise_BA = backend.array(state.noise_rng.standard_normal(shape, dtype=np.float32))
        observations = to_arrays(batch.obs, backend)
        metrics = self._step_critics(batch, observations, learning_rate, noise_BA)
        if state.critic_optimizer.steps % self.config.policy_delay == 0:
            metrics |= self._step_actor(batch, observations, learning_rate)
            self._move_targets()
        return metrics

    def _targets(self, next_observations: Observations, rewards_B: Array, discounts_B: Array, *draws: Any) -> Array:
        """Returns r + discount * min Q_target(s', a'), with a' near the target policy's action, [B, 1].

        The draw is standard normal noise [B, A] (target policy smoothing, section 5.3).
        """
        (noise_BA,) = draws
        xp, config, limit = self.backend.xp, self.config, self.config.target_noise_clip
        smoothing_BA = xp.clip(config.target_noise * noise_BA, -limit, limit)
        policy_BA = xp.tanh(self.target_actor.evaluate(next_observations)[0])
        actions_BA = xp.clip(policy_BA + smoothing_BA, -1.0, 1.0)
        first_B1, second_B1 = self.target_critics.evaluate(next_observations, actions_BA)
        return rewards_B[:, None] + discounts_B[:, None] * xp.minimum(first_B1, second_B1)

    def _actor_gradient(self, observations: Observations, *draws: Any) -> tuple[Array, ...]:
        """Writes the policy's gradient; its loss is mean(-Q1(s, pi(s))), and there is nothing to draw.

        Returns:
            The loss, and the squared norm of the gradient.
        """
        xp = self.backend.xp
        actions_BA = xp.tanh(self.actor(observations)[0])
        values_B1 = self.critics.evaluate_first(observations, actions_BA)
        actor_loss = -self.backend.mean(values_B1[:, 0])
        d_actions_BA = self.critics.first_further_gradient(xp.full_like(values_B1, -1.0 / len(values_B1)))
        self.actor.backward(d_actions_BA * (1.0 - actions_BA) * (1.0 + actions_BA))  # d tanh(u) / du = 1 - a^2
        return actor_loss, self.parameters.squared_gradient_norm()

    def _move_targets(self) -> None:
        """Moves the target critics and the target policy by `tau` (Polyak averaging)."""
        super()._move_targets()
        self.state.target_policy.vector.lerp_(self.parameters.vector, self.config.tau)

    def _name_networks(self) -> dict[str, FlatParameters]:
        return {**super()._name_networks(), "target policy": self.state.target_policy}

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit, as `OffPolicyActorCritic.carry_over`; the target policy starts as a copy."""
        layers = super().carry_over(weights, training)
        self.state.target_policy.vector.copy_(self.parameters.vector)
        return layers


check_spaces = partial(find_space_faults, "td3")
"""Returns the reasons why TD3 can't train on two spaces, one sentence each; see `find_space_faults`."""
