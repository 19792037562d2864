"""The working memory of a stack of networks: parameters and gradients as arrays, and buffers for each batch size.

Products and sums on this memory are computed by the quicker of numpy and torch.

Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rl_training.networks.backend import LEAST_FOR_TORCH, NUMPY, Array, Backend, Form, is_quicker_in_torch
from rl_training.networks.threads import PAYS

ALIGNED = 16
"""If widths are multiples of this number, each row begins at a multiple of 64 bytes; sums may depend on that."""
ROWS = 32
"""A product of some rows of a batch has a multiple of this number of rows, so that most kernels work on whole tiles.

The last bits of a row may still depend on its place in the batch, so a large batch is always split alike.
"""


@dataclass(frozen=True)
class Buffer:
    """Memory that torch and the backend share."""

    tensor: Tensor
    array: Array

    @staticmethod
    def make(shape: tuple[int, ...], like: Tensor, backend: Backend) -> Buffer:
        """Allocates uninitialised memory with the dtype and device of the tensor `like`."""
        return Buffer.share(torch.empty(shape, dtype=like.dtype, device=like.device), backend)

    @staticmethod
    def share(tensor: Tensor, backend: Backend) -> Buffer:
        """Returns the memory of a tensor, detached from its graph."""
        return Buffer(tensor.detach(), backend.view(tensor))

    @cached_property
    def transposed(self) -> Buffer:
        """The same memory with its last two axes swapped."""
        return Buffer(self.tensor.transpose(-2, -1), self.array.swapaxes(-2, -1))

    def __getitem__(self, place: slice | int | tuple[slice, slice]) -> Buffer:
        return Buffer(self.tensor[place], self.array[place])


@dataclass(frozen=True)
class StackArrays:
    """The parameters of a stack, or their gradients, as arrays of the backend."""

    weights: list[Buffer]
    """Hidden weights, [S, I, H] per layer."""
    biases: list[Buffer]
    """Hidden biases, [S, 1, H] per layer."""
    head_weights: list[Buffer]
    """Weights of the heads, [H, K] per network."""
    head_biases: list[Array]
    """Biases of the heads, [1, K] per network."""

    def select(self, networks: slice) -> StackArrays:
        """Returns the arrays of some of the networks."""
        return StackArrays(
            [weight[networks] for weight in self.weights],
            [bias[networks] for bias in self.biases],
            self.head_weights[networks],
            self.head_biases[networks],
        )


@dataclass(frozen=True)
class Part:
    """Some of the networks of a stack, and some rows of a batch, with buffers for one batch size."""

    networks: slice
    """Indices of the networks in the stack."""
    rows: slice
    """Rows of the batch."""
    multiplications: int
    """Number of multiplications in the largest product of one network."""
    is_large: bool
    """Whether the products are large enough for a second thread."""
    own: StackArrays
    """The parameters."""
    own_gradients: StackArrays
    """The gradients of the parameters."""
    outputs: list[Buffer]
    """The output of each hidden layer, [S, B, H]."""
    gradients: list[Buffer]
    """Gradient of the loss with respect to each of these outputs, [S, B, H]."""
    heads: list[Array]
    """The output of each network, [B, K]."""
    ones_1B: Array
    """Ones, so that a fast matrix product sums over a batch."""
    may_use_torch: bool
    """Whether torch may compute the products between hidden layers, if it needs less time."""
    uses_torch: dict[tuple[object, ...], bool] = field(default_factory=dict, init=False)
    """Whether it does, by the strides of the operands and the number of torch's threads."""

    def select(self, networks: slice) -> Part:
        """Returns the part with only some of the networks."""
        return replace(
            self,
            networks=networks,
            own=self.own.select(networks),
            own_gradients=self.own_gradients.select(networks),
            outputs=[buffer[networks] for buffer in self.outputs],
            gradients=[buffer[networks] for buffer in self.gradients],
            heads=self.heads[networks],
        )

    def select_rows(self, rows: slice) -> Part:
        """Returns the part with only some rows of the outputs, for a forward pass."""
        return replace(
            self,
            rows=rows,
            outputs=[buffer[:, rows] for buffer in self.outputs],
            heads=[head[rows] for head in self.heads],
        )


class Workspace:
    """Buffers for one batch size, allocated once, because allocation would cost as much as an update's arithmetic."""

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
        self.heads = [Buffer.make((batch, weight.array.shape[1]), like, backend).array for weight in own.head_weights]
        self.whole = Part(
            networks=slice(None),
            rows=slice(None),
            multiplications=self.multiplications,
            is_large=self.is_large,
            own=own,
            own_gradients=own_gradients,
            outputs=self.outputs,
            gradients=self.gradients,
            heads=self.heads,
            ones_1B=backend.view(torch.ones((1, batch), dtype=like.dtype, device=like.device)),
            may_use_torch=(
                backend is NUMPY
                and like.dtype is torch.float32
                and self.multiplications >= LEAST_FOR_TORCH
                and all(width % ALIGNED == 0 for width in widths[1:])
            ),
        )
        self.each = [self.whole.select(slice(s, s + 1)) for s in range(networks)]
        half = batch // 2 // ROWS * ROWS
        self.halves = [self.whole.select_rows(rows) for rows in (slice(half), slice(half, None))]


def multiply(part: Part, left: Buffer, right: Buffer, out: Buffer, xp: Any) -> None:
    """Computes products of hidden layers, out = left @ right, by the quicker library if both give equal results."""
    if part.may_use_torch:
        key = (left.tensor.stride(), right.tensor.stride(), torch.get_num_threads())
        if key not in part.uses_torch:
            part.uses_torch[key] = is_quicker_in_torch(Form.of(left.tensor, right.tensor))
        if part.uses_torch[key]:
            torch.bmm(left.tensor, right.tensor, out=out.tensor)
            return
    xp.matmul(left.array, right.array, out=out.array)


def add_bias(output: Buffer, bias: Buffer, xp: Any) -> None:
    """Computes h <- h + bias; torch takes half of numpy's time, except for the single row of an acting policy."""
    if output.array.shape[1] == 1:
        xp.add(output.array, bias.array, out=output.array)
    else:
        output.tensor.add_(bias.tensor)
