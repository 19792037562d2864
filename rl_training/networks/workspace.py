"""The memory that a stack of networks computes in: its parameters and gradients as arrays, and a batch's buffers.

Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rl_training.networks.backend import NUMPY, Array, Backend
from rl_training.networks.threads import PAYS


@dataclass(frozen=True)
class Buffer:
    """Memory that both torch and the backend see."""

    tensor: Tensor
    array: Array

    @staticmethod
    def make(shape: tuple[int, ...], like: Tensor, backend: Backend) -> Buffer:
        """Returns memory of the dtype and on the device of a tensor, not initialised."""
        tensor = torch.empty(shape, dtype=like.dtype, device=like.device)
        return Buffer(tensor, backend.view(tensor))

    def __getitem__(self, place: slice) -> Buffer:
        return Buffer(self.tensor[place], self.array[place])


@dataclass(frozen=True)
class StackArrays:
    """The parameters of a stack or their gradients, as the backend's arrays."""

    weights: list[Array]
    """[S, I, H] a hidden layer."""
    biases: list[Array]
    """[S, 1, H] a hidden layer."""
    head_weights: list[Array]
    """[H, K] a network."""
    head_biases: list[Array]
    """[1, K] a network."""

    def of(self, networks: slice) -> StackArrays:
        """Returns those of some of the networks."""
        return StackArrays(
            [weight[networks] for weight in self.weights],
            [bias[networks] for bias in self.biases],
            self.head_weights[networks],
            self.head_biases[networks],
        )


@dataclass(frozen=True)
class Part:
    """Some of a stack's networks, with the buffers of one batch size."""

    networks: slice
    multiplications: int
    """How many the largest product of one of them makes."""
    is_large: bool
    """Whether a second thread could gain anything."""
    own: StackArrays
    own_gradients: StackArrays
    outputs: list[Buffer]
    """Every hidden layer's output, [S, B, H]."""
    gradients: list[Buffer]
    """The loss's gradient by each, [S, B, H]."""
    heads: list[Array]
    """Each network's output, [B, K]."""
    ones_1B: Array
    """A product with it is the sum over a batch, at the speed of a product."""

    def of(self, networks: slice) -> Part:
        """Returns that of some of the networks."""
        return replace(
            self,
            networks=networks,
            own=self.own.of(networks),
            own_gradients=self.own_gradients.of(networks),
            outputs=[buffer[networks] for buffer in self.outputs],
            gradients=[buffer[networks] for buffer in self.gradients],
            heads=self.heads[networks],
        )


class Workspace:
    """The buffers of one batch size, made once: allocation in an update would cost as much as its arithmetic."""

    def __init__(
        self,
        batch: int,
        widths: Sequence[int],
        own: StackArrays,
        own_gradients: StackArrays,
        like: Tensor,
        backend: Backend,
    ) -> None:
        networks = len(own.head_weights)
        most = max((i * h for i, h in pairwise(widths)), default=0)
        self.multiplications = batch * most
        self.is_large = backend is NUMPY and self.multiplications >= PAYS
        self.outputs = [Buffer.make((networks, batch, width), like, backend) for width in widths[1:]]
        self.gradients = [Buffer.make((networks, batch, width), like, backend) for width in widths[1:]]
        self.heads = [Buffer.make((batch, weight.shape[1]), like, backend).array for weight in own.head_weights]
        self.whole = Part(
            networks=slice(None),
            multiplications=self.multiplications,
            is_large=self.is_large,
            own=own,
            own_gradients=own_gradients,
            outputs=self.outputs,
            gradients=self.gradients,
            heads=self.heads,
            ones_1B=backend.view(torch.ones((1, batch), dtype=like.dtype, device=like.device)),
        )
        self.each = [self.whole.of(slice(s, s + 1)) for s in range(networks)]
