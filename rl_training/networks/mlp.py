"""A stack of multi-layer perceptrons (MLPs) with a common input, and a written-out backward pass.

A policy and its value function, or twin critics, have equal hidden layers. As one stack, they take a single batched
matrix product per layer. Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
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
from rl_training.networks.workspace import Buffer, Part, StackArrays, Workspace, add_bias, multiply


@dataclass(frozen=True)
class Activation:
    """An in-place activation whose derivative is a function of its output; each pass uses the fastest call on a CPU."""

    apply_: Callable[[Buffer, Any], object]
    """Computes h <- f(h), given the buffer of h and the module `xp` of the backend."""
    backward_: Callable[[Tensor, Tensor], object]
    """Computes d <- d * f'(.), given d and the output h."""


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
    """The parameters of S networks with equal hidden widths, each with its own linear head.

    Attributes:
        weights: Hidden weights, [S, I, H] per layer.
        biases: Hidden biases, [S, 1, H] per layer.
        head_weights: Weights of the heads, [H, K] per network.
        head_biases: Biases of the heads, [K] per network.
        bound: Computes with the parameters; set by `bind`, which `FlatParameters` calls.
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
        """Makes the networks, with orthogonal weights (gain √2 in hidden layers) and zero biases.

        Args:
            inputs: Width of the common input.
            hidden: Widths of the hidden layers; may be empty.
            outputs: Width of the output of each network; the length is S.
            activation: A key of `ACTIVATIONS`.
            head_gains: Gain of each head.
            rng: Generator of the stream `init`.
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
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.bound = BoundMLPs(self, backend)


class BoundMLPs:
    """Evaluates a `StackedMLP` and backpropagates through it, on the memory that its parameters had at binding.

    Attributes:
        backend: The backend that computes.
    """

    def __init__(self, stack: StackedMLP, backend: Backend) -> None:
        self.backend, self._activation, self._widths = backend, stack.activation, stack.widths
        self._own = self._view_arrays(stack, lambda parameter: parameter)
        self._gradients = self._view_arrays(stack, lambda parameter: parameter.grad)
        self._like = stack.head_biases[0]
        self._workspaces: dict[int, Workspace] = {}
        self._blocks: list[Buffer] = []

    def select(self, network: int) -> tuple[StackArrays, Activation]:
        """Returns the parameters of one network, as a stack of itself, and the activation of its hidden layers."""
        return self._own.select(slice(network, network + 1)), self._activation

    def is_large(self, batch: int) -> bool:
        """Returns whether products of a batch of this size are large enough for all threads."""
        return self._get_workspace(batch).is_large

    def evaluate(self, x_BI: Array) -> list[Array]:
        """Returns the output of each network, [B, K] each; valid until the next evaluation of a batch of equal size."""
        work = self._get_workspace(len(x_BI))
        if work.is_large:
            parts = work.halves if len(work.heads) == 1 else self._split(work)
            tasks = (partial(self._forward, part, x_BI[part.rows]) for part in parts)
            THREADS.call(work.multiplications, *tasks)
        else:
            self._forward(work.whole, x_BI)
        return work.heads

    def evaluate_blocks(self, x_GBI: Array) -> list[Array]:
        """Returns the output of each network for G batches on the CPU, [G, B, K] each; see `evaluate_blocks`."""
        return evaluate_blocks(self._own, self._activation, x_GBI, self._get_blocks(*x_GBI.shape[:2]))

    def backpropagate(
        self, x_BI: Array, d_outputs: Sequence[Array], *, parameters: bool = True, columns: slice | None = None
    ) -> Array | None:
        """Backpropagates through the last evaluation of a batch of equal size, which must have been that of `x_BI`.

        Args:
            x_BI: The inputs.
            d_outputs: Gradient of the loss with respect to each output, [B, K] each.
            parameters: Whether to overwrite the gradients of the parameters.
            columns: Columns of the inputs whose gradient to return.

        Returns:
            The gradient with respect to `columns` of the inputs, [B, columns]; None if `columns` is None.
        """
        work = self._get_workspace(len(x_BI))
        if work.is_large:
            backward = partial(self._backward, x_BI, parameters)
            tasks = (partial(backward, part, d_outputs[part.networks]) for part in self._split(work))
            THREADS.call(work.multiplications, *tasks)
        else:
            self._backward(x_BI, parameters, work.whole, d_outputs)
        if columns is None:
            return None
        if not work.outputs:
            return _sum_products(d_outputs, [weight.array for weight in self._own.head_weights], columns)
        return _sum_products(work.gradients[0].array, self._own.weights[0].array, columns)

    def evaluate_first(self, x_BI: Array) -> Array:
        """Returns the output of the first network alone, [B, K]; valid as that of `evaluate`."""
        work = self._get_workspace(len(x_BI))
        self._forward(work.each[0], x_BI)
        return work.heads[0]

    def backpropagate_first(self, x_BI: Array, d_output_BK: Array, columns: slice) -> Array:
        """Backpropagates to the inputs through the last `evaluate_first` of a batch of equal size.

        Args:
            x_BI: The inputs of that evaluation.
            d_output_BK: Gradient of the loss with respect to the output.
            columns: Columns of the inputs whose gradient to return.

        Returns:
            The gradient with respect to `columns` of the inputs, [B, columns].
        """
        first = self._get_workspace(len(x_BI)).each[0]
        self._backward(x_BI, False, first, [d_output_BK])
        if not first.outputs:
            return _sum_products([d_output_BK], [first.own.head_weights[0].array], columns)
        return _sum_products(first.gradients[0].array, first.own.weights[0].array, columns)

    def _forward(self, part: Part, x_BI: Array) -> None:
        xp, own = self.backend.xp, part.own
        below: Buffer | None = None
        for weight, bias, output in zip(own.weights, own.biases, part.outputs, strict=True):
            if below is None:
                xp.matmul(x_BI, weight.array, out=output.array)  # which broadcasts the input over the networks
            else:
                multiply(part, below, weight, output, xp)
            below = output
            add_bias(output, bias, xp)
            self._activation.apply_(output, xp)
        for s, output in enumerate(part.heads):
            xp.matmul(x_BI if below is None else below.array[s], own.head_weights[s].array, out=output)
            xp.add(output, own.head_biases[s], out=output)

    def _backward(self, x_BI: Array, parameters: bool, part: Part, d_outputs: Sequence[Array]) -> None:
        xp, own, gradients = self.backend.xp, part.own, part.own_gradients
        if parameters:
            top = part.outputs[-1].array if part.outputs else [x_BI] * len(d_outputs)
            for s, d_output in enumerate(d_outputs):
                xp.matmul(top[s].T, d_output, out=gradients.head_weights[s].array)
                xp.matmul(part.ones_1B, d_output, out=gradients.head_biases[s])
        if not part.outputs:
            return
        d = part.gradients[-1]
        for s, d_output in enumerate(d_outputs):
            self._pass_through_head(d_output, own.head_weights[s], d[s])
        for layer in reversed(range(len(own.weights))):
            self._activation.backward_(d.tensor, part.outputs[layer].tensor)
            below = part.gradients[layer - 1] if layer else None
            if below is not None and parameters and part.is_large:
                parameter_task = partial(self._compute_parameter_gradient, part, layer, x_BI, d)
                THREADS.call(
                    part.multiplications, parameter_task, partial(self._compute_input_gradient, part, layer, d, below)
                )
            else:
                if parameters:
                    self._compute_parameter_gradient(part, layer, x_BI, d)
                if below is not None:
                    self._compute_input_gradient(part, layer, d, below)
            d = below or d

    def _pass_through_head(self, d_output_BK: Array, weight_HK: Buffer, out_BH: Buffer) -> None:
        """Writes the gradient with respect to a head's inputs, given that with respect to its outputs."""
        if d_output_BK.shape[1] == 1:  # numpy's product of a column and a row takes ten times as long
            torch.mul(self.backend.tensor(d_output_BK), weight_HK.tensor.T, out=out_BH.tensor)
        else:
            self.backend.xp.matmul(d_output_BK, weight_HK.array.T, out=out_BH.array)

    def _compute_parameter_gradient(self, part: Part, layer: int, x_BI: Array, d: Buffer) -> None:
        xp, gradients = self.backend.xp, part.own_gradients
        if layer:
            multiply(part, part.outputs[layer - 1].transposed, d, gradients.weights[layer], xp)
        else:
            xp.matmul(x_BI.T, d.array, out=gradients.weights[0].array)
        xp.matmul(part.ones_1B, d.array, out=gradients.biases[layer].array)

    def _compute_input_gradient(self, part: Part, layer: int, d: Buffer, below: Buffer) -> None:
        multiply(part, d, part.own.weights[layer].transposed, below, self.backend.xp)

    def _split(self, work: Workspace) -> list[Part]:
        """Returns all networks as one part, or each as its own part if threads should compute them in parallel."""
        return work.each if THREADS.splits(work.multiplications) else [work.whole]

    def _view_arrays(self, stack: StackedMLP, pick: Callable[[nn.Parameter], Any]) -> StackArrays:
        groups = (stack.weights, stack.biases, stack.head_weights, stack.head_biases)
        weights, biases, head_weights, head_biases = (
            [Buffer.share(pick(parameter), self.backend) for parameter in group] for group in groups
        )
        return StackArrays(weights, biases, head_weights, [bias.array[None] for bias in head_biases])

    def _get_blocks(self, groups: int, batch: int) -> list[Buffer]:
        """Returns a buffer for the output of each hidden layer, [G, S, B, H]."""
        if not self._blocks or len(self._blocks[0].array) < groups or self._blocks[0].array.shape[2] != batch:
            shapes = [(groups, bias.array.shape[0], batch, bias.array.shape[2]) for bias in self._own.biases]
            self._blocks = [Buffer.make(shape, self._like, self.backend) for shape in shapes]
        return [buffer[:groups] for buffer in self._blocks]

    def _get_workspace(self, batch: int) -> Workspace:
        if batch not in self._workspaces:
            self._workspaces[batch] = Workspace(
                batch, self._widths, self._own, self._gradients, self._like, self.backend
            )
        return self._workspaces[batch]


def evaluate_blocks(own: StackArrays, activation: Activation, x_GBI: Array, outputs: Sequence[Buffer]) -> list[Array]:
    """Returns the output of each network for G batches, [G, B, K] each, as `evaluate` would for each of them.

    The calls are as many as for one batch, all in numpy, and numpy has a thread compute each without Python. So this
    thread hardly holds up the others.

    Args:
        own: The parameters of the networks.
        activation: The activation of the hidden layers.
        x_GBI: The inputs.
        outputs: Memory for the output of each hidden layer, [G, S, B, H].
    """
    h = x_GBI[:, None]
    for weight, bias, output in zip(own.weights, own.biases, outputs, strict=True):
        np.matmul(h, weight.array, out=output.array)  # one product for each batch and network
        h = output.array
        output.tensor.add_(bias.tensor)  # takes less than half of numpy's time
        activation.apply_(output, np)
    heads = zip(own.head_weights, own.head_biases, strict=True)
    return [h[:, min(s, h.shape[1] - 1)] @ weight.array + bias for s, (weight, bias) in enumerate(heads)]


def _sum_products(d_outputs: Sequence[Array], weights: Sequence[Array], columns: slice) -> Array:
    """Returns the gradient with respect to columns of the common input, given that of the first layer, [B, columns]."""
    return sum(d @ weight[columns].T for d, weight in zip(d_outputs, weights, strict=True))
