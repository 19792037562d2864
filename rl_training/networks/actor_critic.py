"""The networks of policy and value function.

Shapes: S steps, N environments, B batch, I inputs, H hidden units, K outputs of the policy head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from rl_training.config.network import BodyConfig
from rl_training.networks.backend import LEAST_FOR_TORCH, NUMPY
from rl_training.networks.distributions import Distribution
from rl_training.networks.feature_extractors import ObservationLayout, to_arrays
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.mlp import BoundMLPs, evaluate_blocks
from rl_training.networks.observed_mlp import ObservedMLP
from rl_training.networks.workspace import Buffer

FEW_ROWS = 128
"""Largest number of environments whose policy acts by itself, while their values wait for the end of a block."""


class Block(Protocol):
    """Evaluates the networks in a block of steps, between which their weights do not change.

    Attributes:
        outputs: The policy's outputs, [S, N, K]; those of a step are valid after its `act`.
    """

    outputs: np.ndarray

    def begin(self) -> None:
        """Begins a block with the current weights."""

    def act(self, step: int, observations: np.ndarray) -> np.ndarray:
        """Returns the policy's outputs [N, K] for the observations [N, *O] of a step, counted from 0."""

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Returns the values [S, N] of the observations [S, N, *O] of the steps so far."""


class ActorCritic(ObservedMLP):
    """Two MLPs of equal hidden widths, policy [B, K] and value [B, 1], on the features of an observation.

    The two share the convolutions of images, or a body that the settings name; for plain vectors, they share nothing.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        rng: np.random.Generator,
        body: BodyConfig | None = None,
    ) -> None:
        outputs, gains = (distribution.outputs, 1), (POLICY_GAIN, VALUE_GAIN)
        super().__init__(layout, 0, hidden, outputs, activation, gains, rng, body)
        self.distribution = distribution

    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the policy's outputs [N, K], valid until the next evaluation, and a copy of the values [N]."""
        outputs_NK, values_N1 = self.evaluate(to_arrays(observations, self.backend))
        return self.backend.numpy(outputs_NK), self.backend.numpy(values_N1[:, 0]).copy()

    def make_block(self, steps: int, rows: int) -> Block:
        """Returns the faster kind of block for S steps of N environments.

        Values wait for the end of a block if that takes less time: if calls take longer than their arithmetic, and the
        two networks share no convolutions.
        """
        most = max((weight.shape[1] * weight.shape[2] for weight in self.mlps.weights), default=0)
        small = rows <= FEW_ROWS and rows * most < LEAST_FOR_TORCH
        if self._vectors and self.backend is NUMPY and small:
            return SeparateBlock(self._bound, steps, rows)
        return JointBlock(self, steps, rows)


class JointBlock:
    """Evaluates policy and value function together at each step."""

    def __init__(self, network: ActorCritic, steps: int, rows: int) -> None:
        self._network, kind = network, network.mlps.head_biases[0].detach().cpu().numpy().dtype
        self.outputs = np.zeros((steps, rows, network.distribution.outputs), kind)
        self._values = np.zeros((steps, rows), kind)

    def begin(self) -> None:
        """Begins a block; nothing depends on the weights yet."""

    def act(self, step: int, observations: np.ndarray) -> np.ndarray:
        """Evaluates both networks."""
        self.outputs[step], self._values[step] = self._network.act(observations)
        outputs_NK: np.ndarray = self.outputs[step]
        return outputs_NK

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Returns the values that `act` has found."""
        return self._values[: len(observations)]


class SeparateBlock:
    """Evaluates the policy at each step, and the value function at the end of the block, both with few calls.

    All numbers equal those of `ActorCritic.act` to the last bit. The policy's biases are repeated for all rows, because
    a sum of arrays of equal shape takes half as long.
    """

    def __init__(self, bound: BoundMLPs, steps: int, rows: int) -> None:
        (self._policy, self._activation), (self._value, _) = bound.select(0), bound.select(1)
        kind = bound.select(0)[0].head_biases[0].dtype
        self.outputs = np.zeros((steps, rows, self._policy.head_biases[0].shape[1]), kind)
        widths = [bias.array.shape[-1] for bias in self._policy.biases]
        self._hidden = [_make_buffer((rows, width), kind) for width in widths]
        self._value_hidden = [_make_buffer((steps, 1, rows, width), kind) for width in widths]
        self._repeated = [np.zeros((rows, width), kind) for width in (*widths, self.outputs.shape[2])]
        weights = [weight.array[0] for weight in self._policy.weights]
        self._layers = [
            (_choose_product(rows, weight_IH), weight_IH, bias_NH, buffer, buffer.array)
            for weight_IH, bias_NH, buffer in zip(weights, self._repeated, self._hidden, strict=False)
        ]
        self._head = _choose_product(rows, self._policy.head_weights[0].array)

    def begin(self) -> None:
        """Repeats the current biases of the policy."""
        biases = [bias.array[0] for bias in self._policy.biases] + self._policy.head_biases
        for repeated_NH, bias_1H in zip(self._repeated, biases, strict=True):
            repeated_NH[:] = bias_1H

    def act(self, step: int, observations: np.ndarray) -> np.ndarray:
        """Evaluates the policy."""
        x, apply_ = observations, self._activation.apply_
        for multiply, weight_IH, bias_NH, buffer, hidden_NH in self._layers:
            multiply(x, weight_IH, hidden_NH)
            np.add(hidden_NH, bias_NH, hidden_NH)
            apply_(buffer, np)
            x = hidden_NH
        outputs_NK: np.ndarray = self.outputs[step]
        self._head(x, self._policy.head_weights[0].array, outputs_NK)
        np.add(outputs_NK, self._repeated[-1], outputs_NK)
        return outputs_NK

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Evaluates the value function, with a product for each step, as that of all steps may have other bits."""
        hidden = [buffer[: len(observations)] for buffer in self._value_hidden]
        values_SN1: np.ndarray = evaluate_blocks(self._value, self._activation, observations, hidden)[0]
        return values_SN1[..., 0]


def _choose_product(rows: int, weight: np.ndarray) -> Callable[..., object]:
    """Returns `ndarray.dot`, which takes half as long as `matmul`, where both leave the product to the same routine."""
    return np.matmul if 1 in (rows, *weight.shape) else np.ndarray.dot


def _make_buffer(shape: tuple[int, ...], kind: np.dtype[np.floating]) -> Buffer:
    array = np.zeros(shape, kind)
    return Buffer(torch.from_numpy(array), array)
