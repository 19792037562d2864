"""Multi-layer perceptrons that stand side by side on one input, with the backward pass written out.

A policy and its value function, or twin critics, have the same hidden layers: as one stack they take a single batched
matrix product a layer. Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.networks.backend import Array, Backend
from rl_training.networks.initialization import HIDDEN_GAIN, orthogonal_
from rl_training.networks.threads import THREADS
from rl_training.networks.workspace import Buffer, Part, StackArrays, Workspace


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
        if work.is_large:
            THREADS.call(work.multiplications, *(partial(self._forward, part, x_BI) for part in self._parts(work)))
        else:
            self._forward(work.whole, x_BI)
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
        if work.is_large:
            go_back = partial(self._backward, x_BI, parameters)
            tasks = (partial(go_back, part, d_outputs[part.networks]) for part in self._parts(work))
            THREADS.call(work.multiplications, *tasks)
        else:
            self._backward(x_BI, parameters, work.whole, d_outputs)
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
            below = part.gradients[layer - 1] if layer else None
            if below is not None and parameters and part.is_large:
                by_parameters = partial(self._parameter_gradient, part, layer, x_BI, d)
                THREADS.call(part.multiplications, by_parameters, partial(self._input_gradient, part, layer, d, below))
            else:
                if parameters:
                    self._parameter_gradient(part, layer, x_BI, d)
                if below is not None:
                    self._input_gradient(part, layer, d, below)
            d = below or d

    def _parameter_gradient(self, part: Part, layer: int, x_BI: Array, d: Buffer) -> None:
        xp, gradients = self.backend.xp, part.own_gradients
        inputs = part.outputs[layer - 1].array.swapaxes(1, 2) if layer else x_BI.T
        xp.matmul(inputs, d.array, out=gradients.weights[layer])
        xp.matmul(part.ones_1B, d.array, out=gradients.biases[layer])

    def _input_gradient(self, part: Part, layer: int, d: Buffer, below: Buffer) -> None:
        self.backend.xp.matmul(d.array, part.own.weights[layer].swapaxes(1, 2), out=below.array)

    def _parts(self, work: Workspace) -> list[Part]:
        """Returns all networks together, or each by itself where they shall be computed side by side."""
        return work.each if THREADS.splits(work.multiplications) else [work.whole]

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
