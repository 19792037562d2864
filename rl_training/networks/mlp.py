"""Multi-layer perceptrons that stand side by side on one input, with the backward pass written out.

A policy and its value function, or twin critics, have the same hidden layers: as one stack they take a single batched
matrix product a layer. Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.networks.backend import Array, Backend
from rl_training.networks.initialization import HIDDEN_GAIN, orthogonal_
from rl_training.networks.threads import THREADS


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
class Activation:
    """An activation whose derivative is a function of its output, in place; each way by what is quickest on a CPU."""

    apply_: Callable[[Buffer, Any], object]
    """h <- f(h), given the buffer of h and the backend's module."""
    backward_: Callable[[Tensor, Tensor], object]
    """d <- d * f'(.), given d and the output h."""


ACTIVATIONS = {
    "tanh": Activation(
        lambda h, xp: xp.tanh(h.array, out=h.array),
        lambda d, h: torch.ops.aten.tanh_backward.grad_input(d, h, grad_input=d),
    ),
    "relu": Activation(
        lambda h, xp: torch.relu_(h.tensor),
        lambda d, h: torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d),
    ),
}


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


class StackedMLP(nn.Module):
    """The parameters of S networks with common hidden widths, each with a linear head of its own.

    Attributes:
        weights: Hidden weights, [S, I, H] a layer.
        biases: Hidden biases, [S, 1, H] a layer.
        head_weights: [H, K] a network.
        head_biases: [K] a network.
        bound: What computes with them, once `FlatParameters` has given them their place.
    """

    bound: BoundMLPs

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: Sequence[int],
        activation: str,
        head_gains: Sequence[float],
        rng: np.random.Generator,
    ) -> None:
        """Makes the networks: orthogonal weights (gain sqrt 2 in hidden layers), zero biases.

        Args:
            inputs: Width of the common input.
            hidden: Widths of the hidden layers; may be empty.
            outputs: Width of each network's output; their number is S.
            activation: A key of `ACTIVATIONS`.
            head_gains: Gain of each head.
            rng: The stream `init`.
        """
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.widths, self.networks = (inputs, *hidden), len(outputs)
        pairs = list(zip(self.widths, hidden, strict=False))
        self.weights = nn.ParameterList(torch.empty(self.networks, i, h) for i, h in pairs)
        self.biases = nn.ParameterList(torch.zeros(self.networks, 1, h) for _, h in pairs)
        self.head_weights = nn.ParameterList(torch.empty(self.widths[-1], k) for k in outputs)
        self.head_biases = nn.ParameterList(torch.zeros(k) for k in outputs)
        for weight in self.weights:
            for network in weight.detach():
                orthogonal_(network, HIDDEN_GAIN, rng)
        for weight, gain in zip(self.head_weights, head_gains, strict=True):
            orthogonal_(weight, gain, rng)

    def bind(self, backend: Backend) -> None:
        """Computes from now on with a backend, on the memory where parameters and gradients are now."""
        self.bound = BoundMLPs(self, backend)


class BoundMLPs:
    """Evaluates a `StackedMLP` and goes back through it, where its parameters are at the moment of binding.

    Attributes:
        backend: What computes.
    """

    def __init__(self, stack: StackedMLP, backend: Backend) -> None:
        self.backend, self._activation, self._widths = backend, stack.activation, stack.widths
        self._own = self._arrays(stack, lambda parameter: parameter)
        self._gradients = self._arrays(stack, lambda parameter: parameter.grad)
        self._like = stack.head_biases[0]
        self._workspaces: dict[int, Workspace] = {}

    def evaluate(self, x_BI: Array) -> list[Array]:
        """Returns the output of each network, [B, K] each; valid until the next evaluation of as large a batch."""
        work = self._workspace(len(x_BI))
        THREADS.call(work.multiplications, *(partial(self._forward, part, x_BI) for part in self._parts(work)))
        return work.heads

    def backpropagate(
        self, x_BI: Array, d_outputs: Sequence[Array], *, parameters: bool = True, columns: slice | None = None
    ) -> Array | None:
        """Goes back through the last evaluation of as large a batch, which must have been that of `x_BI`.

        Args:
            x_BI: The inputs.
            d_outputs: The loss's gradient by each output, [B, K] each.
            parameters: Whether to overwrite the gradient of each parameter.
            columns: The inputs whose gradient is wanted.

        Returns:
            The gradient by the inputs `columns`, [B, columns]; None without them.
        """
        work = self._workspace(len(x_BI))
        go_back = partial(self._backward, x_BI, parameters)
        tasks = (partial(go_back, part, d_outputs[part.networks]) for part in self._parts(work))
        THREADS.call(work.multiplications, *tasks)
        if columns is None:
            return None
        if not work.outputs:
            return _sum_of_products(d_outputs, self._own.head_weights, columns)
        return _sum_of_products(work.gradients[0].array, self._own.weights[0], columns)

    def _forward(self, part: Part, x_BI: Array) -> None:
        xp, own = self.backend.xp, part.own
        h_SBH = x_BI  # which the first product spreads over the networks
        for weight, bias, output in zip(own.weights, own.biases, part.outputs, strict=True):
            h_SBH = xp.matmul(h_SBH, weight, out=output.array)
            xp.add(h_SBH, bias, out=h_SBH)
            self._activation.apply_(output, xp)
        for s, output in enumerate(part.heads):
            xp.matmul(h_SBH[s] if part.outputs else x_BI, own.head_weights[s], out=output)
            xp.add(output, own.head_biases[s], out=output)

    def _backward(self, x_BI: Array, parameters: bool, part: Part, d_outputs: Sequence[Array]) -> None:
        xp, own, gradients = self.backend.xp, part.own, part.own_gradients
        if parameters:
            top = part.outputs[-1].array if part.outputs else [x_BI] * len(d_outputs)
            for s, d_output in enumerate(d_outputs):
                xp.matmul(top[s].T, d_output, out=gradients.head_weights[s])
                xp.matmul(part.ones_1B, d_output, out=gradients.head_biases[s])
        if not part.outputs:
            return
        d = part.gradients[-1]
        for s, d_output in enumerate(d_outputs):
            xp.matmul(d_output, own.head_weights[s].T, out=d.array[s])
        for layer in reversed(range(len(own.weights))):
            self._activation.backward_(d.tensor, part.outputs[layer].tensor)
            tasks = []
            if parameters:
                inputs = part.outputs[layer - 1].array.swapaxes(1, 2) if layer else x_BI.T
                tasks.append(partial(self._parameter_gradient, part, layer, inputs, d.array))
            if layer:
                below = part.gradients[layer - 1]
                tasks.append(partial(xp.matmul, d.array, own.weights[layer].swapaxes(1, 2), out=below.array))
                d = below
            THREADS.call(part.multiplications, *tasks)

    def _parameter_gradient(self, part: Part, layer: int, inputs: Array, d_SBH: Array) -> None:
        xp, gradients = self.backend.xp, part.own_gradients
        xp.matmul(inputs, d_SBH, out=gradients.weights[layer])
        xp.matmul(part.ones_1B, d_SBH, out=gradients.biases[layer])

    def _parts(self, work: Workspace) -> list[Part]:
        """Returns all networks together, or each by itself where they shall be computed side by side."""
        return work.each if THREADS.go_side_by_side(work.multiplications) else work.whole

    def _arrays(self, stack: StackedMLP, pick: Callable[[nn.Parameter], Any]) -> StackArrays:
        groups = (stack.weights, stack.biases, stack.head_weights, stack.head_biases)
        views = [[self.backend.view(pick(parameter)) for parameter in group] for group in groups]
        return StackArrays(views[0], views[1], views[2], [bias[None] for bias in views[3]])

    def _workspace(self, batch: int) -> Workspace:
        if batch not in self._workspaces:
            self._workspaces[batch] = Workspace(
                batch, self._widths, self._own, self._gradients, self._like, self.backend
            )
        return self._workspaces[batch]


def _sum_of_products(d_outputs: Sequence[Array], weights: Sequence[Array], columns: slice) -> Array:
    """Returns the gradient by some of the inputs that all networks share, given the first layer's, [B, columns]."""
    return sum(d @ weight[columns].T for d, weight in zip(d_outputs, weights, strict=True))


@dataclass(frozen=True)
class Part:
    """Some of a stack's networks, with the buffers of one batch size."""

    networks: slice
    multiplications: int
    """How many the largest product of one of them makes on a CPU."""
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
        return Part(
            networks,
            self.multiplications,
            self.own.of(networks),
            self.own_gradients.of(networks),
            [buffer[networks] for buffer in self.outputs],
            [buffer[networks] for buffer in self.gradients],
            self.heads[networks],
            self.ones_1B,
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
        self.multiplications = batch * most if backend.xp is np else 0
        self.outputs = [Buffer.make((networks, batch, width), like, backend) for width in widths[1:]]
        self.gradients = [Buffer.make((networks, batch, width), like, backend) for width in widths[1:]]
        self.heads = [Buffer.make((batch, weight.shape[1]), like, backend).array for weight in own.head_weights]
        ones_1B = backend.view(torch.ones((1, batch), dtype=like.dtype, device=like.device))
        whole = Part(
            slice(None), self.multiplications, own, own_gradients, self.outputs, self.gradients, self.heads, ones_1B
        )
        self.whole, self.each = [whole], [whole.of(slice(s, s + 1)) for s in range(networks)]
