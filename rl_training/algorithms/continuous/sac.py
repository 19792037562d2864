"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, "Algorithms and Applications").

Shapes: N environments, B batch, O observation dims, A action dims, K outputs of one critic, T samples of a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.continuous.actor_critic import ActorCriticState, OffPolicyActorCritic, find_space_faults
from rl_training.algorithms.continuous.soft_returns import draw_middle, sum_middle_logprobs
from rl_training.algorithms.continuous.temperature import make_temperature
from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks import squashed_gaussian
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import Layers


@dataclass
class SACState(ActorCriticState):
    """Everything that training changes besides the policy's weights; a checkpoint holds all of these fields."""

    log_alpha: Tensor
    """The logarithm of the entropy's weight, [1]; see `Temperature`."""
    alpha_optimizer: FlatAdam | None
    """Adam of log alpha; None if alpha is fixed."""


class SAC(OffPolicyActorCritic):
    """Acts, and learns from replayed transitions, with twin critics."""

    config: MaximumEntropyConfig
    state: SACState
    ACTOR_MEASUREMENTS = ("actor_loss", "entropy")

    def __init__(
        self,
        config: MaximumEntropyConfig,
        encoder: ObservationEncoder,
        codec: ActionCodec,
        device: torch.device,
        *,
        critic_outputs: Sequence[int] = (1, 1),
    ) -> None:
        """Makes the networks and the temperature; for the arguments see `OffPolicyActorCritic`."""
        outputs = 2 * codec.size  # means and log deviations
        super().__init__(config, encoder, codec, device, actor_outputs=outputs, critic_outputs=critic_outputs)
        self.temperature = make_temperature(config, codec.size)
        self.state = SACState(
            **vars(self.state), log_alpha=self.temperature.log_alpha, alpha_optimizer=self.temperature.optimizer
        )

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the tanh of the mean action in each environment, float32 [N, A]."""
        return squashed_gaussian.mode(self.policy_outputs(observation))

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws an action from each squashed Gaussian, float32 [N, A]."""
        return squashed_gaussian.draw(outputs, rng)

    def _update(self, batch: ReplayBatch, learning_rate: float) -> dict[str, float]:
        """Takes a gradient step of critics, policy and temperature."""
        backend, state, temperature = self.backend, self.state, self.temperature
        alpha = temperature.alpha  # for all losses, also after the temperature's own step
        metrics = {"entropy_coef": alpha}

        shape = (2, len(batch), self.action_dims)
        next_noise_BA, noise_BA = backend.array(state.noise_rng.standard_normal(shape, dtype=np.float32))
        middle = draw_middle(batch, self.action_dims, state.noise_rng, backend)
        observations = to_arrays(batch.obs, backend)

        critic = self._step_critics(batch, observations, learning_rate, next_noise_BA, alpha, *middle)
        actor = self._step_actor(batch, observations, learning_rate, noise_BA, alpha)
        if temperature.optimizer is not None:
            metrics["entropy_coef_loss"] = temperature.step(-actor["entropy"], learning_rate)
        self._move_targets()
        return metrics | critic | actor

    def _targets(self, next_observations: Observations, rewards_B: Array, discounts_B: Array, *draws: Any) -> Array:
        """Returns r + discount * (Q_target(s', a') - alpha log pi(a'|s')), with a' from the policy, [B, T].

        The reward of n steps includes the entropy between them; see `soft_returns`. The draws are the noise of a'
        [B, A], alpha, and what `draw_middle` returns.
        """
        noise_BA, alpha, *middle = draws
        if middle:
            rewards_B = rewards_B - alpha * sum_middle_logprobs(self.actor, self.backend, *middle)
        sample = squashed_gaussian.sample(self.actor.evaluate(next_observations)[0], noise_BA, self.backend)
        values = self.target_critics.evaluate(next_observations, sample.actions_BA)
        next_BT = self._next_values(values) - alpha * sample.logprobs_B[:, None]
        return rewards_B[:, None] + discounts_B[:, None] * next_BT

    def _next_values(self, values: Sequence[Array]) -> Array:
        """Returns the smaller one of the target critics' values, [B, 1]."""
        first_B1, second_B1 = values
        return self.backend.xp.minimum(first_B1, second_B1)

    def _actor_gradient(self, observations: Observations, *draws: Any) -> tuple[Array, ...]:
        """Writes the policy's gradient; its loss is mean(alpha log pi(a|s) - Q(s, a)), with a from the policy.

        The draws are the noise of a [B, A], and alpha.

        Returns:
            The loss, the entropy, and the squared norm of the gradient.
        """
        noise_BA, alpha = draws
        backend = self.backend
        sample = squashed_gaussian.sample(self.actor(observations)[0], noise_BA, backend)
        values_B, d_values = self._policy_values(self.critics.evaluate(observations, sample.actions_BA))
        actor_loss = backend.mean(alpha * sample.logprobs_B - values_B)
        d_actions_BA = self.critics.further_gradient(*d_values)
        self.actor.backward(sample.backward(d_actions_BA, alpha / len(noise_BA), backend.xp))
        return actor_loss, -backend.mean(sample.logprobs_B), self.parameters.squared_gradient_norm()

    def _policy_values(self, values: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Returns what the policy maximises, min Q [B], and the gradient of minus its mean by each critic, [B, 1]."""
        first_B1, second_B1 = values
        scale = 1.0 / len(first_B1)
        first_is_less_B1 = self.backend.numbers(first_B1 <= second_B1, first_B1)
        d_values = [first_is_less_B1 * -scale, (first_is_less_B1 - 1.0) * scale]
        return self.backend.xp.minimum(first_B1, second_B1)[:, 0], d_values

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit, as `OffPolicyActorCritic.carry_over`, and a learned entropy weight."""
        layers, temperature = super().carry_over(weights, training), self.temperature
        if temperature.optimizer is None or training is None or training["alpha_optimizer"] is None:
            return layers
        temperature.log_alpha.copy_(training["log_alpha"])
        return layers.beside(Layers(("log_alpha",), ()), "")


check_spaces = partial(find_space_faults, "sac")
"""Returns the reasons why SAC can't train on two spaces, one sentence each; see `find_space_faults`."""
