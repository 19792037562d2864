"""What all kinds of PPO learn from a rollout (Schulman et al. 2017, with the details of Huang et al. 2022).

Shapes: T or S steps, N environments, B batch, A action dims, K outputs of the policy head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.explained_variance import explained_variance
from rl_training.algorithms.network_algorithm import NetworkAlgorithm
from rl_training.algorithms.ppo_losses import clipped_surrogate_loss, clipped_value_loss, normalize_advantages
from rl_training.algorithms.schedules import anneal
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer
from rl_training.envs.spaces.action_mask import take_features, take_mask
from rl_training.errors import CheckpointError, NumericError
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Array
from rl_training.networks.distributions import FORBIDDEN, Distribution
from rl_training.networks.feature_extractors import to_arrays
from rl_training.networks.flat import FlatParameters
from rl_training.seeding import generator

KL_TOLERANCE = 1.5
"""An update stops when the approximate KL of a minibatch exceeds `target_kl` times this factor."""


@dataclass
class Measurements:
    """The measurements of a minibatch, or sums of them."""

    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    approx_kl: float = 0.0
    clip_fraction: float = 0.0
    gradient_norm: float = 0.0


@dataclass
class UpdateCursor:
    """The position within an update, so that an interrupted update can be continued."""

    epoch: int = 0
    """The number of complete passes over the rollout."""
    position: int = 0
    """The number of transitions of this pass that the update has learned from."""
    order: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The permutation of this pass, int64 [T * N]; empty until it is drawn."""
    sums: dict[str, float] = field(default_factory=lambda: asdict(Measurements()))
    """Measurements summed over transitions."""
    transitions: int = 0
    """The number of transitions in the sums."""

    def require_permutation(self) -> None:
        """Checks a restored cursor.

        Raises:
            CheckpointError: The order is no permutation, or the position lies beyond its end.
        """
        total = len(self.order)
        if self.position > total or not np.array_equal(np.sort(self.order), np.arange(total)):
            raise CheckpointError(f"cursor: {self.position} of an order that is no permutation of {total} transitions")

    def add(self, measured: Measurements, transitions: int) -> None:
        """Adds a minibatch to the sums."""
        for name, value in vars(measured).items():
            self.sums[name] += transitions * value
        self.transitions += transitions


@dataclass
class PPOState:
    """Everything that training changes besides the weights; a checkpoint holds all of these fields."""

    optimizer: FlatAdam
    """Adam's running means and its number of steps."""
    action_rng: np.random.Generator
    """Draws actions."""
    permutation_rng: np.random.Generator
    """Draws the permutations from which minibatches are taken."""
    cursor: UpdateCursor | None = None
    """The position in an unfinished update; None between updates."""


class Networks(Protocol):
    """The networks of policy and value function."""

    def __call__(self, inputs: Any) -> list[Array]:
        """Returns the policy's outputs [B, K] and the values [B, 1], and prepares for `backward`."""

    def backward(self, *d_outputs: Array) -> None:
        """Overwrites the gradients of all parameters, given the gradient with respect to each output."""


def forbid(outputs_BK: Array, allowed_BK: Array | None, xp: Any) -> Array:
    """Returns logits in which a mask forbids choices, or the outputs themselves if there is no mask."""
    return outputs_BK if allowed_BK is None else xp.where(allowed_BK, outputs_BK, FORBIDDEN)


class PPOLearner(NetworkAlgorithm):
    """Learns from rollouts; a subclass makes the networks and acts.

    Args:
        config: The settings.
        distribution: The distribution of actions.
        network: The networks, which contain the distribution's parameters.
        device: The device that learns.
    """

    network: Networks
    state: PPOState

    def __init__(self, config: PPOConfig, distribution: Distribution, network: nn.Module, device: torch.device) -> None:
        self.config, self.distribution = config, distribution
        self.parameters = FlatParameters(network, device)
        self.backend = self.parameters.backend
        self._backpropagate = self.backend.captured(self._loss_gradient)
        self.state = PPOState(
            optimizer=FlatAdam(self.parameters.vector, config.adam_epsilon),
            action_rng=generator(config.seed, "action"),
            permutation_rng=generator(config.seed, "permutation"),
        )

    def draw_noise(self, steps: int, num_envs: int) -> np.ndarray:
        """Draws the noise of the actions of S steps of N environments, [S, N, K]."""
        return self.distribution.draw_noise(steps, num_envs, self.state.action_rng)

    def draw_actions(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws an action from each distribution, [N, *A]."""
        return self.distribution.sample(outputs, rng)

    def update(self, buffer: RolloutBuffer, progress: float, poll: Callable[[], None]) -> dict[str, float]:
        """Learns from a rollout with computed advantages.

        Args:
            buffer: The rollout.
            progress: The fraction of all timesteps that was completed before this rollout, in [0, 1).
            poll: Called before each minibatch. If it raises, the next call continues the update at this minibatch; so
                does another object that has loaded this one's weights and state.

        Returns:
            Metrics by their tracked names, as means over the transitions of all minibatches.

        Raises:
            NumericError: A loss, gradient or weight is NaN or infinite.
        """
        config, state = self.config, self.state
        learning_rate = anneal(config.learning_rate, config.learning_rate_schedule, progress)
        clip_range = anneal(config.clip_range, config.clip_range_schedule, progress)
        cursor = state.cursor = state.cursor or UpdateCursor()
        for minibatch in self._minibatches(buffer, cursor):
            poll()
            measured = self._gradient(minibatch, clip_range)
            cursor.add(measured, len(minibatch))
            if config.target_kl is not None and measured.approx_kl > KL_TOLERANCE * config.target_kl:
                break
            self.parameters.clip_gradient(measured.gradient_norm, config.max_grad_norm)
            state.optimizer.step(self.parameters.vector, self.parameters.gradient, learning_rate)
        state.cursor = None
        if (name := self.parameters.non_finite_parameter()) is not None:
            raise NumericError(f"weight {name} is NaN or infinite after an update; a lower learning_rate may help")
        metrics = {name: total / cursor.transitions for name, total in cursor.sums.items()}
        metrics |= {"learning_rate": learning_rate, "clip_range": clip_range, **self.distribution.metrics()}
        metrics |= self._explained_variance(buffer)
        return {f"train/{name}": value for name, value in metrics.items()}

    def _minibatches(self, buffer: RolloutBuffer, cursor: UpdateCursor) -> Iterator[Minibatch]:
        """Yields the remaining minibatches; each counts as done when the next one is requested."""
        total = self._count_transitions(buffer)
        while cursor.epoch < self.config.epochs:
            if len(cursor.order) == 0:
                cursor.order = self._draw_order(buffer)
            if len(cursor.order) != total:
                raise CheckpointError(
                    f"the unfinished update has {len(cursor.order)} transitions, but the rollout has {total}"
                )
            for minibatch in self._divide(buffer, cursor.order[cursor.position :]):
                yield minibatch
                cursor.position += len(minibatch)
            cursor.epoch, cursor.position, cursor.order = cursor.epoch + 1, 0, cursor.order[:0]

    # What several ranks, or networks with a memory, do in another way; see `ranked_ppo.py` and `recurrent_ppo.py`.

    def _draw_order(self, buffer: RolloutBuffer) -> np.ndarray:
        """Returns the order in which a pass learns from the transitions, int64 [T * N]."""
        return buffer.draw_order(self.state.permutation_rng)

    def _count_transitions(self, buffer: RolloutBuffer) -> int:
        """Returns the number of transitions that the update learns from."""
        return buffer.num_transitions

    def _divide(self, buffer: RolloutBuffer, order: np.ndarray) -> Iterator[Minibatch]:
        """Yields the minibatches of transitions in a given order."""
        return buffer.iter_minibatches(self.config.batch_size, order)

    def _select_inputs(self, minibatch: Minibatch) -> Any:
        """Returns what the networks evaluate for a minibatch."""
        return to_arrays(take_features(minibatch.obs), self.backend)

    def _normalize(self, minibatch: Minibatch) -> np.ndarray:
        """Returns the normalised advantages, [B]."""
        return normalize_advantages(minibatch.advantages)

    def _explained_variance(self, buffer: RolloutBuffer) -> dict[str, float]:
        """Returns the explained variance of the values by its name; see `explained_variance`."""
        return explained_variance(buffer)

    @np.errstate(all="ignore")  # `_require_finite` looks for such values in the measurements
    def _gradient(self, minibatch: Minibatch, clip_range: float) -> Measurements:
        """Writes the gradient of the loss on a minibatch; returns the measurements."""
        measured = self._write_gradient(minibatch, clip_range)
        measured[-1] = math.sqrt(measured[-1])
        measurements = Measurements(*measured)
        self._require_finite(measurements)
        return measurements

    def _write_gradient(self, minibatch: Minibatch, clip_range: float) -> list[float]:
        """Writes the gradient; returns the fields of `Measurements`, of which the last one is squared."""
        backend, advantages_B, allowed_BK = self.backend, minibatch.advantages, take_mask(minibatch.obs)
        if self.config.normalize_advantage:
            advantages_B = self._normalize(minibatch)
        return backend.floats(
            self._backpropagate(
                self._select_inputs(minibatch),
                backend.array(minibatch.actions),
                backend.array(minibatch.logprobs),
                backend.array(minibatch.values),
                backend.array(minibatch.returns),
                backend.array(advantages_B),
                clip_range,
                *([] if allowed_BK is None else [backend.array(allowed_BK)]),
            )
        )

    def _loss_gradient(
        self,
        inputs: Any,
        actions: Array,
        old_logprobs_B: Array,
        old_values_B: Array,
        returns_B: Array,
        advantages_B: Array,
        clip_range: Array,
        allowed_BK: Array | None = None,
    ) -> tuple[Array, ...]:
        """Writes the gradient; returns the fields of `Measurements`, of which the last one is squared."""
        config, backend, xp, count = self.config, self.backend, self.backend.xp, len(actions)
        outputs_BK, values_B1 = self.network(inputs)
        evaluation = self.distribution.evaluate_actions(forbid(outputs_BK, allowed_BK, xp), actions)
        log_ratios_B = evaluation.logprobs_B - old_logprobs_B
        ratios_B = xp.exp(log_ratios_B)

        policy_loss, d_ratios_B = clipped_surrogate_loss(ratios_B, advantages_B, clip_range, xp)
        value_loss, d_values_B = clipped_value_loss(values_B1[:, 0], old_values_B, returns_B, config.value_clip, xp)
        # The loss is policy_loss + value_coef * value_loss - entropy_coef * entropy, and d ratio / d log_prob = ratio.
        d_outputs_BK = evaluation.backward(d_ratios_B * ratios_B, -config.entropy_coef / count)
        self.network.backward(d_outputs_BK, config.value_coef * d_values_B[:, None])

        entropy = backend.mean(evaluation.entropies_B)
        approx_kl = backend.mean(ratios_B - 1.0 - log_ratios_B)
        clip_fraction = backend.mean(xp.abs(ratios_B - 1.0) > clip_range)
        return policy_loss, value_loss, entropy, approx_kl, clip_fraction, self.parameters.squared_gradient_norm()

    def _require_finite(self, measured: Measurements) -> None:
        for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
            value, what = getattr(measured, name), name
            if math.isfinite(value):
                continue
            if name == "gradient_norm":
                what = f"gradient of {self.parameters.non_finite_gradient() or 'all parameters together'}"
            raise NumericError(f"{what} is not finite ({name} {value}); a lower learning_rate may help")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, an unfinished update included.

        Raises:
            CheckpointError: The state belongs to another network, or a value is not valid.
        """
        cursor = None
        if "cursor" in state:
            cursor = UpdateCursor(order=np.zeros(len(state["cursor"]["order"]), np.int64))
        self.state.cursor = cursor
        super().load_state_dict(state)
        if cursor is not None:
            cursor.require_permutation()
