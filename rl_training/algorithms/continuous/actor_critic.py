"""What the off-policy actor-critics for continuous actions share: networks, warm-up, gradient steps and targets.

Shapes: N environments, B batch, A action dims, K outputs of one critic, T samples of a target.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.finite_checks import require_finite_update
from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.algorithms.schedules import anneal
from rl_training.algorithms.space_checks import describe_wrong_actions, find_encoding_faults
from rl_training.config.algorithms.actor_critic import ActorCriticConfig
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.flat import FlatParameters, Layers
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.observed_mlp import ObservedMLP
from rl_training.seeding import generator


@dataclass
class ActorCriticState:
    """Everything that training changes besides the policy's weights; a checkpoint holds all of these fields."""

    critics: FlatParameters
    """The weights of all critics."""
    targets: FlatParameters
    """The weights of all target critics."""
    actor_optimizer: FlatAdam
    """Adam of the policy."""
    critic_optimizer: FlatAdam
    """Adam of all critics; its number of steps is the number of updates."""
    action_rng: np.random.Generator
    """Draws actions in the environments."""
    replay_rng: np.random.Generator
    """Draws the transitions of each batch."""
    noise_rng: np.random.Generator
    """Draws the noise of actions in updates."""
    warmup_actions: np.ndarray
    """The random action that each environment repeats in the warm-up, float32 [N, A]."""


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """A policy that learns from critics, which learn from replayed transitions and target critics.

    All actions here lie in [-1, 1]: in the buffer, for the critics, and in the entropy.
    """

    config: ActorCriticConfig
    state: ActorCriticState
    ACTOR_MEASUREMENTS: ClassVar[Sequence[str]]
    """Names of what `_actor_gradient` returns."""

    def __init__(
        self,
        config: ActorCriticConfig,
        encoder: ObservationEncoder,
        codec: ActionCodec,
        device: torch.device,
        *,
        actor_outputs: int,
        critic_outputs: Sequence[int],
    ) -> None:
        """Makes the networks with weights from the seed's `init` stream; the target critics start as copies.

        Args:
            config: The settings.
            encoder: Encoder of the observations.
            codec: Codec of the actions.
            device: Device that computes updates.
            actor_outputs: Number of outputs of the policy.
            critic_outputs: Number of outputs of each critic.
        """
        network, rng = config.network, generator(config.seed, "init")
        self.config, self.action_dims = config, codec.size
        self.actor = self._make_actor(encoder, actor_outputs, rng)
        own = (network.activation, (VALUE_GAIN,) * len(critic_outputs), rng, network.body)
        self.critics = ObservedMLP(encoder, codec.size, network.hidden, critic_outputs, *own)
        self.target_critics = copy.deepcopy(self.critics)
        self.parameters = FlatParameters(self.actor, device)
        self.backend = self.parameters.backend
        self._backpropagate_critics = self.backend.captured(self._critic_gradient)
        self._backpropagate_actor = self.backend.captured(self._actor_gradient)
        critics = FlatParameters(self.critics, device)
        self.state = ActorCriticState(
            critics=critics,
            targets=FlatParameters(self.target_critics, device),
            actor_optimizer=FlatAdam(self.parameters.vector),
            critic_optimizer=FlatAdam(critics.vector),
            action_rng=generator(config.seed, "action"),
            replay_rng=generator(config.seed, "replay"),
            noise_rng=generator(config.seed, "update_noise"),
            warmup_actions=np.zeros((config.num_envs, codec.size), np.float32),
        )

    def _make_actor(self, encoder: ObservationEncoder, outputs: int, rng: np.random.Generator) -> ObservedMLP:
        network = self.config.network
        own = (network.activation, (POLICY_GAIN,), rng, network.body)
        return ObservedMLP(encoder, 0, network.hidden, (outputs,), *own)

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
            return self.draw_actions(self.policy_outputs(observation), state.action_rng)
        if num_timesteps // config.num_envs % config.warmup_hold == 0:
            draws = state.action_rng.uniform(-1.0, 1.0, (len(observation), self.action_dims))
            state.warmup_actions = draws.astype(np.float32)
        return state.warmup_actions

    def policy_outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns the policy's outputs for each observation, which are valid until its next evaluation."""
        return self.backend.numpy(self.actor.evaluate(to_arrays(observation, self.backend))[0])

    @abstractmethod
    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws an exploring action from each row of the policy's outputs, float32 [N, A]."""

    def q_values(self, observation: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the value of actions [N, A] in [-1, 1], float32 [N]: the smallest one of all critics."""
        backend = self.backend
        values = self.critics.evaluate(to_arrays(observation, backend), backend.array(actions))
        return backend.numpy(reduce(backend.xp.minimum, values)[:, 0])

    @np.errstate(all="ignore")  # `require_finite_update` looks for such values in the measurements
    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step for everything that is due, then moves the target networks.

        Args:
            batch: Transitions with normalised observations.
            progress: The completed fraction of all timesteps, in [0, 1].

        Returns:
            Metrics by their tracked names.

        Raises:
            NumericError: A loss, gradient or weight is NaN or infinite.
        """
        learning_rate = anneal(self.config.learning_rate, self.config.learning_rate_schedule, progress)
        with self.critics.all_threads(len(batch)):
            metrics = self._update(batch, learning_rate)
        return {f"train/{name}": value for name, value in metrics.items()} | {"train/learning_rate": learning_rate}

    @abstractmethod
    def _update(self, batch: ReplayBatch, learning_rate: float) -> dict[str, float]:
        """Takes the gradient steps of an update; returns its metrics by name."""

    def _step_critics(
        self, batch: ReplayBatch, observations: Observations, learning_rate: float, *draws: Any
    ) -> dict[str, float]:
        """Takes a gradient step of the critics; returns its measurements by name. For `draws` see `_targets`."""
        backend, state = self.backend, self.state
        measured = self._backpropagate_critics(
            observations,
            to_arrays(batch.next_obs, backend),
            backend.array(batch.actions),
            backend.array(batch.rewards),
            backend.array(batch.discounts),
            *draws,
        )
        named = self._name_measurements(("critic_loss", "q_mean", "gradient_norm"), measured, batch)
        state.critic_optimizer.step(state.critics.vector, state.critics.gradient, learning_rate)
        return named

    def _step_actor(
        self, batch: ReplayBatch, observations: Observations, learning_rate: float, *draws: Any
    ) -> dict[str, float]:
        """Takes a gradient step of the policy; returns its measurements by name. For `draws` see `_actor_gradient`."""
        measured = self._backpropagate_actor(observations, *draws)
        named = self._name_measurements((*self.ACTOR_MEASUREMENTS, "actor_gradient_norm"), measured, batch)
        self.state.actor_optimizer.step(self.parameters.vector, self.parameters.gradient, learning_rate)
        return named

    def _name_measurements(
        self, names: Sequence[str], measured: Sequence[Array], batch: ReplayBatch
    ) -> dict[str, float]:
        """Returns the finite measurements of a backward pass by name; the last one is the square of a norm."""
        *losses, squared_norm = self.backend.floats(measured)
        named = dict(zip(names, (*losses, math.sqrt(squared_norm)), strict=True))
        require_finite_update(named, batch, self._name_networks())
        return named

    def _critic_gradient(
        self,
        observations: Observations,
        next_observations: Observations,
        actions_BA: Array,
        rewards_B: Array,
        discounts_B: Array,
        *draws: Any,
    ) -> tuple[Array, ...]:
        """Writes the critics' gradient; for the arguments see `_targets`.

        Returns:
            The loss, the mean value of the first critic, and the squared norm of the gradient.
        """
        targets_BT = self._targets(next_observations, rewards_B, discounts_B, *draws)
        values = self.critics(observations, actions_BA)
        q_mean = self.backend.mean(values[0].reshape(-1))
        critic_loss, d_values = self._critic_loss(values, targets_BT)
        self.critics.backward(*d_values)
        return critic_loss, q_mean, self.state.critics.squared_gradient_norm()

    @abstractmethod
    def _targets(self, next_observations: Observations, rewards_B: Array, discounts_B: Array, *draws: Any) -> Array:
        """Returns what the critics learn, [B, T], from random draws; a discount is 0 after a terminal step."""

    def _critic_loss(self, values: Sequence[Array], targets_B1: Array) -> tuple[Array, list[Array]]:
        """Returns half the sum of the critics' mean squared errors, and its gradient by the values, [B, 1] each."""
        errors = [values_B1 - targets_B1 for values_B1 in values]
        critic_loss = 0.5 * sum(self.backend.mean(errors_B1[:, 0] ** 2) for errors_B1 in errors)
        return critic_loss, [errors_B1 * (1.0 / len(targets_B1)) for errors_B1 in errors]

    @abstractmethod
    def _actor_gradient(self, observations: Observations, *draws: Any) -> tuple[Array, ...]:
        """Writes the policy's gradient.

        Returns:
            `ACTOR_MEASUREMENTS`, and the squared norm of the gradient.
        """

    def _move_targets(self) -> None:
        """Moves the target critics by `tau` (Polyak averaging)."""
        self.state.targets.vector.lerp_(self.state.critics.vector, self.config.tau)

    def _name_networks(self) -> dict[str, FlatParameters]:
        return {"policy": self.parameters, "critics": self.state.critics, "target critics": self.state.targets}

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit from another agent, to begin training with them.

        Args:
            weights: The other agent's `policy_state`.
            training: The other agent's `state_dict`; without it, the critics keep their new weights. The target critics
                start as copies of the critics.

        Raises:
            CheckpointError: No layer of the policy fits.
        """
        own = self.state
        layers = self.parameters.load_layers_that_fit(weights)
        critics = Layers((), tuple(own.critics.state_dict()))
        if training is not None:
            critics = own.critics.load_layers_that_fit(training["critics"])
            own.targets.vector.copy_(own.critics.vector)
        return layers.beside(critics, "critics.")


def find_space_faults(algorithm: str, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> list[str]:
    """Returns the reasons why an algorithm can't train on these spaces, one sentence each; it needs a bounded Box."""
    if isinstance(action_space, gym.spaces.Box) and action_space.is_bounded():
        return find_encoding_faults(observation_space, action_space, scaled=True)
    bounded = gym.spaces.Box(-1.0, 1.0, (1,))  # a placeholder, so that the observation space is checked too
    expected = "a Box with a lower and an upper bound in each dimension"
    return [
        *find_encoding_faults(observation_space, bounded),
        describe_wrong_actions(algorithm, expected, action_space),
    ]
