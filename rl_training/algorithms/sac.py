"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, "Algorithms and Applications").

Shapes: N environments, B batch, O observation dims, A action dims.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.finite import require_finite
from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.algorithms.schedules import annealed
from rl_training.algorithms.space_checks import encoding_faults, wrong_actions
from rl_training.algorithms.temperature import make_temperature
from rl_training.config.sac import SACConfig
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks import squashed_gaussian
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import FlatParameters, Layers
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.observed_mlp import ObservedMLP
from rl_training.seeding import generator


@dataclass
class SACState:
    """All that training changes besides the policy's weights: exactly what a checkpoint must hold."""

    critics: FlatParameters
    """The twin critics' weights."""
    targets: FlatParameters
    """The twin target critics' weights."""
    actor_optimizer: FlatAdam
    """Adam of the policy; its steps count the updates."""
    critic_optimizer: FlatAdam
    """Adam of both critics."""
    log_alpha: Tensor
    """The logarithm of the entropy's weight, [1]; see `Temperature`."""
    alpha_optimizer: FlatAdam | None
    """Adam of log alpha; None if alpha is fixed."""
    action_rng: np.random.Generator
    """Draws actions in the environments."""
    replay_rng: np.random.Generator
    """Draws what is learnt from."""
    noise_rng: np.random.Generator
    """Draws the policy's actions in updates."""
    warmup_actions: np.ndarray
    """What each environment repeats in the warm-up, float32 [N, A]."""


class SAC(OffPolicyAlgorithm):
    """Acts, and learns from replayed transitions; knows no environment, file or logger.

    Actions lie in [-1, 1] everywhere here: in the buffer, the critics, the entropy.
    """

    state: SACState

    def __init__(
        self, config: SACConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks, with weights drawn from the seed's `init` stream; the targets start as copies.

        Args:
            config: The settings.
            encoder: Kind, shape and dtype of one observation.
            codec: The action space, a scaled `Box`.
            device: Where the networks live.
        """
        network, rng = config.network, generator(config.seed, "init")
        self.config, self.action_dims = config, codec.size
        hidden, activation = network.hidden, network.activation
        self.actor = ObservedMLP(encoder, 0, hidden, (2 * codec.size,), activation, (POLICY_GAIN,), rng)
        self.critics = ObservedMLP(encoder, codec.size, hidden, (1, 1), activation, (VALUE_GAIN, VALUE_GAIN), rng)
        self.target_critics = copy.deepcopy(self.critics)
        self.parameters = FlatParameters(self.actor, device)
        self.backend = self.parameters.backend
        self._backpropagate_critics = self.backend.captured(self._critic_gradient)
        self._backpropagate_actor = self.backend.captured(self._actor_gradient)
        critics = FlatParameters(self.critics, device)
        self.temperature = make_temperature(config, codec.size)
        self.state = SACState(
            critics=critics,
            targets=FlatParameters(self.target_critics, device),
            actor_optimizer=FlatAdam(self.parameters.vector),
            critic_optimizer=FlatAdam(critics.vector),
            log_alpha=self.temperature.log_alpha,
            alpha_optimizer=self.temperature.optimizer,
            action_rng=generator(config.seed, "action"),
            replay_rng=generator(config.seed, "replay"),
            noise_rng=generator(config.seed, "update_noise"),
            warmup_actions=np.zeros((config.num_envs, codec.size), np.float32),
        )

    def act(self, observation: np.ndarray, num_timesteps: int) -> np.ndarray:
        """Draws an action in each environment; before `learning_starts`, uniformly from all of [-1, 1].

        Such a random action is repeated for `warmup_hold` steps (as in Dabney et al. 2021, "Temporally-Extended
        Epsilon-Greedy Exploration"): single ones cancel out, and never leave a valley, say.

        Args:
            observation: [N, *O].
            num_timesteps: Environment steps so far.

        Returns:
            Actions in [-1, 1], float32 [N, A].
        """
        state, config = self.state, self.config
        if num_timesteps >= config.learning_starts:
            return squashed_gaussian.draw(self._outputs(observation), state.action_rng)
        if num_timesteps // config.num_envs % config.warmup_hold == 0:
            draws = state.action_rng.uniform(-1.0, 1.0, (len(observation), self.action_dims))
            state.warmup_actions = draws.astype(np.float32)
        return state.warmup_actions

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns tanh of the mean in each environment, float32 [N, A]."""
        return squashed_gaussian.mode(self._outputs(observation))

    def q_values(self, observation: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the smaller critic's value of actions [N, A] in [-1, 1], float32 [N]."""
        backend = self.backend
        first_N1, second_N1 = self.critics.evaluate(to_arrays(observation, backend), backend.array(actions))
        return backend.numpy(backend.xp.minimum(first_N1, second_N1)[:, 0])

    def _outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns the policy's outputs for acting, [N, 2A], valid until the next evaluation."""
        return self.backend.numpy(self.actor.evaluate(to_arrays(observation, self.backend))[0])

    @np.errstate(all="ignore")  # what is not finite is found in the measurements, and named
    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step each of critics, temperature and policy, then moves the target critics.

        All losses weigh the entropy by alpha as it was before the temperature's step.

        Args:
            batch: Transitions, their observations normalised.
            progress: The fraction of all timesteps that came before, in [0, 1].

        Returns:
            Metrics by their tracked names.

        Raises:
            NumericError: A loss, gradient or weight is NaN or infinite.
        """
        config, state, temperature = self.config, self.state, self.temperature
        learning_rate = annealed(config.learning_rate, config.learning_rate_schedule, progress)
        alpha = temperature.alpha
        metrics = {"entropy_coef": alpha, "learning_rate": learning_rate}

        backend, shape = self.backend, (2, len(batch), self.action_dims)
        next_noise_BA, noise_BA = backend.array(state.noise_rng.standard_normal(shape, dtype=np.float32))
        observations, next_observations = to_arrays(batch.obs, backend), to_arrays(batch.next_obs, backend)

        critic = self._measured(
            ("critic_loss", "q_mean", "gradient_norm"),
            self._backpropagate_critics(
                observations,
                next_observations,
                backend.array(batch.actions),
                backend.array(batch.rewards),
                backend.array(batch.discounts),
                next_noise_BA,
                alpha,
            ),
        )
        require_finite(critic, batch, self._networks())
        state.critic_optimizer.step(state.critics.vector, state.critics.gradient, learning_rate)

        actor = self._measured(
            ("actor_loss", "entropy", "actor_gradient_norm"),
            self._backpropagate_actor(observations, noise_BA, alpha),
        )
        require_finite(actor, batch, self._networks())
        if temperature.optimizer is not None:
            metrics["entropy_coef_loss"] = temperature.step(-actor["entropy"], learning_rate)
        state.actor_optimizer.step(self.parameters.vector, self.parameters.gradient, learning_rate)

        state.targets.vector.lerp_(state.critics.vector, config.tau)
        return {f"train/{name}": value for name, value in (metrics | critic | actor).items()}

    def _measured(self, names: Sequence[str], measured: Sequence[Array]) -> dict[str, float]:
        """Returns what a backward pass has measured by its names; the last is the square of a norm."""
        *losses, squared_norm = self.backend.floats(measured)
        return dict(zip(names, (*losses, math.sqrt(squared_norm)), strict=True))

    def _critic_gradient(
        self,
        observations: Observations,
        next_observations: Observations,
        actions_BA: Array,
        rewards_B: Array,
        discounts_B: Array,
        next_noise_BA: Array,
        alpha: Array,
    ) -> tuple[Array, ...]:
        """Fills the critics' gradient with that of half the sum of their mean squared errors.

        Returns:
            That loss, the first critic's mean, and the gradient's squared norm.
        """
        backend = self.backend
        targets_B1 = self._targets(next_observations, rewards_B, discounts_B, next_noise_BA, alpha)
        values = self.critics(observations, actions_BA)
        errors = [values_B1 - targets_B1 for values_B1 in values]
        critic_loss = 0.5 * sum(backend.mean(errors_B1[:, 0] ** 2) for errors_B1 in errors)
        q_mean = backend.mean(values[0][:, 0])
        self.critics.backward(*(errors_B1 * (1.0 / len(actions_BA)) for errors_B1 in errors))
        return critic_loss, q_mean, self.state.critics.squared_gradient_norm()

    def _targets(
        self, next_observations: Observations, rewards_B: Array, discounts_B: Array, noise_BA: Array, alpha: Array
    ) -> Array:
        """Returns r + discount * (min Q_target(s', a') - alpha log pi(a'|s')), a' of the policy, [B, 1]."""
        sample = squashed_gaussian.sample(self.actor.evaluate(next_observations)[0], noise_BA, self.backend)
        first_B1, second_B1 = self.target_critics.evaluate(next_observations, sample.actions_BA)
        next_B1 = self.backend.xp.minimum(first_B1, second_B1) - alpha * sample.logprobs_B[:, None]
        return rewards_B[:, None] + discounts_B[:, None] * next_B1

    def _actor_gradient(self, observations: Observations, noise_BA: Array, alpha: Array) -> tuple[Array, ...]:
        """Fills the policy's gradient with that of mean(alpha log pi(a|s) - min Q(s, a)), a drawn from the policy.

        Returns:
            That loss, the entropy, and the gradient's squared norm.
        """
        backend, xp, count = self.backend, self.backend.xp, len(noise_BA)
        sample = squashed_gaussian.sample(self.actor(observations)[0], noise_BA, backend)
        first_B1, second_B1 = self.critics.evaluate(observations, sample.actions_BA)
        actor_loss = backend.mean(alpha * sample.logprobs_B - xp.minimum(first_B1, second_B1)[:, 0])
        first_is_less_B1 = backend.numbers(first_B1 <= second_B1, first_B1)
        d_actions_BA = self.critics.further_gradient(
            first_is_less_B1 * (-1.0 / count), (first_is_less_B1 - 1.0) * (1.0 / count)
        )
        self.actor.backward(sample.backward(d_actions_BA, alpha / count, xp))
        return actor_loss, -backend.mean(sample.logprobs_B), self.parameters.squared_gradient_norm()

    def _networks(self) -> dict[str, FlatParameters]:
        return {"policy": self.parameters, "critics": self.state.critics, "target critics": self.state.targets}

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Takes over what fits of another agent's networks, and its entropy weight, to begin training with.

        Args:
            weights: Its `policy_state`.
            training: Its `state_dict`, with the critics; without it they are fresh. The targets start as copies.

        Raises:
            CheckpointError: No layer of the policy fits.
        """
        own, temperature = self.state, self.temperature
        layers = self.parameters.load_layers_that_fit(weights)
        critics, log_alpha = Layers((), tuple(own.critics.state_dict())), Layers((), ())
        if training is not None:
            critics = own.critics.load_layers_that_fit(training["critics"])
            own.targets.vector.copy_(own.critics.vector)
        if temperature.optimizer is not None and training is not None and training["alpha_optimizer"] is not None:
            temperature.log_alpha.copy_(training["log_alpha"])
            log_alpha = Layers(("log_alpha",), ())
        return layers.beside(critics, "critics.").beside(log_alpha, "")


def check_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> list[str]:
    """Returns why SAC can't train on these spaces, a sentence each; nothing where it can."""
    if not (isinstance(action_space, gym.spaces.Box) and action_space.is_bounded()):
        bounded = gym.spaces.Box(-1.0, 1.0, (1,))  # stands in, so that the observation space is judged too
        expected = "a Box with a lower and an upper bound in each dimension"
        return [*encoding_faults(observation_space, bounded), wrong_actions("sac", expected, action_space)]
    return encoding_faults(observation_space, action_space, scaled=True)
