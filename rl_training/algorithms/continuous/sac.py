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

from rl_training.algorithms.continuous.soft_returns import draw_middle, sum_middle_logprobs
from rl_training.algorithms.continuous.temperature import make_temperature
from rl_training.algorithms.finite_checks import require_finite_update
from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.algorithms.schedules import anneal
from rl_training.algorithms.space_checks import describe_wrong_actions, find_encoding_faults
from rl_training.config.algorithms.sac import SACConfig
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
    """Everything that training changes besides the policy's weights; a checkpoint holds all of these fields."""

    critics: FlatParameters
    """The weights of both critics."""
    targets: FlatParameters
    """The weights of both target critics."""
    actor_optimizer: FlatAdam
    """Adam of the policy; its number of steps is the number of updates."""
    critic_optimizer: FlatAdam
    """Adam of both critics."""
    log_alpha: Tensor
    """The logarithm of the entropy's weight, [1]; see `Temperature`."""
    alpha_optimizer: FlatAdam | None
    """Adam of log alpha; None if alpha is fixed."""
    action_rng: np.random.Generator
    """Draws actions in the environments."""
    replay_rng: np.random.Generator
    """Draws the transitions of each batch."""
    noise_rng: np.random.Generator
    """Draws the policy's actions in updates."""
    warmup_actions: np.ndarray
    """The random action that each environment repeats in the warm-up, float32 [N, A]."""


class SAC(OffPolicyAlgorithm):
    """Acts, and learns from replayed transitions.

    All actions here lie in [-1, 1]: in the buffer, for the critics, and in the entropy.
    """

    state: SACState

    def __init__(
        self, config: SACConfig, encoder: ObservationEncoder, codec: ActionCodec, device: torch.device
    ) -> None:
        """Makes the networks with weights from the seed's `init` stream; the target critics start as copies."""
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
        """Draws an action in each environment; before `learning_starts`, uniformly from [-1, 1].

        Such a random action is repeated for `warmup_hold` steps (as in Dabney et al. 2021, "Temporally-Extended
        Epsilon-Greedy Exploration"), because independent actions cancel out and may never leave a valley.

        Args:
            observation: [N, *O].
            num_timesteps: The environment steps so far.

        Returns:
            Actions in [-1, 1], float32 [N, A].
        """
        state, config = self.state, self.config
        if num_timesteps >= config.learning_starts:
            return squashed_gaussian.draw(self.policy_outputs(observation), state.action_rng)
        if num_timesteps // config.num_envs % config.warmup_hold == 0:
            draws = state.action_rng.uniform(-1.0, 1.0, (len(observation), self.action_dims))
            state.warmup_actions = draws.astype(np.float32)
        return state.warmup_actions

    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the tanh of the mean action in each environment, float32 [N, A]."""
        return squashed_gaussian.mode(self.policy_outputs(observation))

    def policy_outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns the policy's outputs, [N, 2A], which are valid until its next evaluation."""
        return self.backend.numpy(self.actor.evaluate(to_arrays(observation, self.backend))[0])

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws an action from each squashed Gaussian, float32 [N, A]."""
        return squashed_gaussian.draw(outputs, rng)

    def q_values(self, observation: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the smaller of both critics' values of actions [N, A] in [-1, 1], float32 [N]."""
        backend = self.backend
        first_N1, second_N1 = self.critics.evaluate(to_arrays(observation, backend), backend.array(actions))
        return backend.numpy(backend.xp.minimum(first_N1, second_N1)[:, 0])

    @np.errstate(all="ignore")  # `require_finite` looks for such values in the measurements
    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step for critics, temperature and policy, then moves the target critics.

        Args:
            batch: Transitions with normalised observations.
            progress: The completed fraction of all timesteps, in [0, 1].

        Returns:
            Metrics by their tracked names.

        Raises:
            NumericError: A loss, gradient or weight is NaN or infinite.
        """
        with self.critics.all_threads(len(batch)):
            return self._update(batch, progress)

    def _update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        config, state, temperature = self.config, self.state, self.temperature
        learning_rate = anneal(config.learning_rate, config.learning_rate_schedule, progress)
        alpha = temperature.alpha  # for all losses, also after the temperature's own step
        metrics = {"entropy_coef": alpha, "learning_rate": learning_rate}

        backend, shape = self.backend, (2, len(batch), self.action_dims)
        next_noise_BA, noise_BA = backend.array(state.noise_rng.standard_normal(shape, dtype=np.float32))
        observations, next_observations = to_arrays(batch.obs, backend), to_arrays(batch.next_obs, backend)
        middle = draw_middle(batch, self.action_dims, state.noise_rng, backend)

        critic = self._name_measurements(
            ("critic_loss", "q_mean", "gradient_norm"),
            self._backpropagate_critics(
                observations,
                next_observations,
                backend.array(batch.actions),
                backend.array(batch.rewards),
                backend.array(batch.discounts),
                next_noise_BA,
                alpha,
                *middle,
            ),
        )
        require_finite_update(critic, batch, self._name_networks())
        state.critic_optimizer.step(state.critics.vector, state.critics.gradient, learning_rate)

        actor = self._name_measurements(
            ("actor_loss", "entropy", "actor_gradient_norm"),
            self._backpropagate_actor(observations, noise_BA, alpha),
        )
        require_finite_update(actor, batch, self._name_networks())
        if temperature.optimizer is not None:
            metrics["entropy_coef_loss"] = temperature.step(-actor["entropy"], learning_rate)
        state.actor_optimizer.step(self.parameters.vector, self.parameters.gradient, learning_rate)

        state.targets.vector.lerp_(state.critics.vector, config.tau)
        return {f"train/{name}": value for name, value in (metrics | critic | actor).items()}

    def _name_measurements(self, names: Sequence[str], measured: Sequence[Array]) -> dict[str, float]:
        """Returns the measurements of a backward pass by name; the last measurement is the square of a norm."""
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
        *middle: Any,
    ) -> tuple[Array, ...]:
        """Writes the critics' gradient; their loss is half the sum of both mean squared errors.

        For the arguments see `_targets`; `middle` is what `draw_middle` returns.

        Returns:
            The loss, the mean value of the first critic, and the squared norm of the gradient.
        """
        backend = self.backend
        targets_B1 = self._targets(next_observations, rewards_B, discounts_B, next_noise_BA, alpha, *middle)
        values = self.critics(observations, actions_BA)
        errors = [values_B1 - targets_B1 for values_B1 in values]
        critic_loss = 0.5 * sum(backend.mean(errors_B1[:, 0] ** 2) for errors_B1 in errors)
        q_mean = backend.mean(values[0][:, 0])
        self.critics.backward(*(errors_B1 * (1.0 / len(actions_BA)) for errors_B1 in errors))
        return critic_loss, q_mean, self.state.critics.squared_gradient_norm()

    def _targets(
        self,
        next_observations: Observations,
        rewards_B: Array,
        discounts_B: Array,
        noise_BA: Array,
        alpha: Array,
        *middle: Any,
    ) -> Array:
        """Returns r + discount * (min Q_target(s', a') - alpha log pi(a'|s')), with a' from the policy, [B, 1].

        The reward of n steps includes the entropy between them; see `soft_returns`.
        """
        if middle:
            rewards_B = rewards_B - alpha * sum_middle_logprobs(self.actor, self.backend, *middle)
        sample = squashed_gaussian.sample(self.actor.evaluate(next_observations)[0], noise_BA, self.backend)
        first_B1, second_B1 = self.target_critics.evaluate(next_observations, sample.actions_BA)
        next_B1 = self.backend.xp.minimum(first_B1, second_B1) - alpha * sample.logprobs_B[:, None]
        return rewards_B[:, None] + discounts_B[:, None] * next_B1

    def _actor_gradient(self, observations: Observations, noise_BA: Array, alpha: Array) -> tuple[Array, ...]:
        """Writes the policy's gradient; its loss is mean(alpha log pi(a|s) - min Q(s, a)), with a from the policy.

        Returns:
            The loss, the entropy, and the squared norm of the gradient.
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

    def _name_networks(self) -> dict[str, FlatParameters]:
        return {"policy": self.parameters, "critics": self.state.critics, "target critics": self.state.targets}

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit from another agent, and its entropy weight, to begin training with them.

        Args:
            weights: The other agent's `policy_state`.
            training: The other agent's `state_dict`; without it, the critics keep their new weights. The target critics
                start as copies of the critics.

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
    """Returns the reasons why SAC can't train on these spaces, one sentence each."""
    if not (isinstance(action_space, gym.spaces.Box) and action_space.is_bounded()):
        bounded = gym.spaces.Box(-1.0, 1.0, (1,))  # a placeholder, so that the observation space is checked too
        expected = "a Box with a lower and an upper bound in each dimension"
        return [
            *find_encoding_faults(observation_space, bounded),
            describe_wrong_actions("sac", expected, action_space),
        ]
    return find_encoding_faults(observation_space, action_space, scaled=True)
