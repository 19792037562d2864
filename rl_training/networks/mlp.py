"""Multi-layer perceptrons that stand side by side on one input, with the backward pass written out.

A policy and its value function, or twin critics, have the same hidden layers: as one stack they take a single batched
matrix product a layer. Shapes: S networks, B batch, I inputs, H hidden units, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rl_training.networks.initialization import HIDDEN_GAIN, orthogonal_


@dataclass(frozen=True)
class Activation:
    """An activation whose derivative is a function of its output, in place everywhere."""

    torch_: Callable[[Tensor], Tensor]
    """h <- f(h)."""
    numpy_: Callable[[np.ndarray], np.ndarray]
    """h <- f(h)."""
    backward_: Callable[[Tensor, Tensor], Tensor]
    """d <- d * f'(.), given d and the output h."""


ACTIVATIONS = {
    "tanh": Activation(
        torch.tanh_,
        lambda h: np.tanh(h, out=h),
        lambda d, h: torch.ops.aten.tanh_backward.grad_input(d, h, grad_input=d),
    ),
    "relu": Activation(
        torch.relu_,
        lambda h: np.maximum(h, 0, out=h),
        lambda d, h: torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d),
    ),
}


class StackedMLP(nn.Module):
    """S networks with common hidden widths, each with a linear head of its own.

    Attributes:
        weights: Hidden weights, [S, I, H] a layer.
        biases: Hidden biases, [S, 1, H] a layer.
        head_weights: [H, K] a network.
        head_biases: [K] a network.
    """

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
        self._in_order = (*self.weights, *self.biases, *self.head_weights, *self.head_biases)
        self._workspaces: dict[int, Workspace] = {}

    def forward(self, x_BI: Tensor) -> tuple[Tensor, ...]:
        """Returns the output of each network, [B, K] each."""
        return _Stack.apply(x_BI, self, *self._in_order)  # type: ignore[no-any-return, no-untyped-call]

    def evaluate(self, x_BI: Tensor) -> tuple[Tensor, ...]:
        """Returns the output of each network, [B, K] each, without a graph; `backpropagate` may follow."""
        with torch.no_grad():
            return _forward_pass(self, self.workspace(x_BI.shape[0]), x_BI, self._in_order)

    def backpropagate(
        self, x_BI: Tensor, d_outputs: Sequence[Tensor], *, parameters: bool = True, columns: slice | None = None
    ) -> Tensor | None:
        """Goes back through the last evaluation of as large a batch, which must have been that of `x_BI`.

        Args:
            x_BI: The inputs.
            d_outputs: The loss's gradient by each output, [B, K] each.
            parameters: Whether to overwrite the `grad` of each parameter, which must be there, with its gradient.
            columns: The inputs whose gradient is wanted.

        Returns:
            The gradient by the inputs `columns`, [B, columns]; None without them.
        """
        gradients: list[Any] | None = [parameter.grad for parameter in self._in_order] if parameters else None
        with torch.no_grad():
            return _backward_pass(
                self, self.workspace(x_BI.shape[0]), x_BI, self._in_order, d_outputs, gradients, columns
            )

    def split(self, in_order: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Splits what is in the order of the parameters: hidden weights and biases, head weights and biases."""
        layers, heads = len(self.weights), 2 * len(self.weights)
        return (
            in_order[:layers],
            in_order[layers:heads],
            in_order[heads : heads + self.networks],
            in_order[heads + self.networks :],
        )

    def workspace(self, batch: int) -> Workspace:
        """Returns the buffers for a batch of this size, made once."""
        if batch not in self._workspaces:
            self._workspaces[batch] = Workspace(self, batch)
        return self._workspaces[batch]


class Workspace:
    """The buffers of one batch size: every layer's output and its gradient, [S, B, H] each."""

    def __init__(self, stack: StackedMLP, batch: int) -> None:
        like = stack.head_weights[0]
        shapes = [(stack.networks, batch, width) for width in stack.widths[1:]]
        self.outputs = [torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes]
        self.gradients = [torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes]
        self.uses = 0
        """Forward passes so far; a backward pass must follow the last."""


class _Stack(torch.autograd.Function):
    """Forward and backward of a `StackedMLP`, one node of the autograd graph."""

    @staticmethod
    def forward(ctx: Any, x_BI: Tensor, stack: StackedMLP, *parameters: Tensor) -> tuple[Tensor, ...]:
        work = stack.workspace(x_BI.shape[0])
        outputs = _forward_pass(stack, work, x_BI, parameters)
        ctx.stack, ctx.work, ctx.use = stack, work, work.uses
        ctx.x_BI, ctx.parameters = x_BI, parameters
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.use != ctx.work.uses:
            raise RuntimeError("the network was used again before this backward pass, so that its buffers are gone")
        gradients = [torch.empty_like(parameter) for parameter in ctx.parameters]
        columns = slice(None) if ctx.needs_input_grad[0] else None
        d_x = _backward_pass(ctx.stack, ctx.work, ctx.x_BI, ctx.parameters, d_outputs, gradients, columns)
        return (d_x, None, *gradients)


def _forward_pass(stack: StackedMLP, work: Workspace, x_BI: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    weights, biases, head_weights, head_biases = stack.split(parameters)
    work.uses += 1
    h_SBH = x_BI.expand(stack.networks, *x_BI.shape)
    for weight, bias, output in zip(weights, biases, work.outputs, strict=True):
        h_SBH = stack.activation.torch_(torch.baddbmm(bias, h_SBH, weight, out=output))
    return tuple(torch.addmm(b, h, w) for h, w, b in zip(h_SBH, head_weights, head_biases, strict=True))


def _backward_pass(
    stack: StackedMLP,
    work: Workspace,
    x_BI: Tensor,
    parameters: Sequence[Tensor],
    d_outputs: Sequence[Tensor],
    gradients: Sequence[Tensor] | None,
    columns: slice | None,
) -> Tensor | None:
    """Writes the parameters' gradients, where asked for, and returns the inputs', likewise."""
    weights, _, head_weights, _ = stack.split(parameters)
    d_weights, d_biases, d_head_weights, d_head_biases = stack.split(gradients or [None] * len(parameters))
    inputs = [x_BI.expand(stack.networks, *x_BI.shape), *work.outputs]
    if gradients is not None:
        for h, d, d_weight, d_bias in zip(inputs[-1], d_outputs, d_head_weights, d_head_biases, strict=True):
            torch.mm(h.t(), d, out=d_weight)
            torch.sum(d, 0, out=d_bias)
    d_SBH = work.gradients[-1] if weights else torch.empty_like(inputs[0])
    for d, d_output, weight in zip(d_SBH, d_outputs, head_weights, strict=True):
        torch.mm(d_output, weight.t(), out=d)
    for layer in reversed(range(len(weights))):
        stack.activation.backward_(d_SBH, work.outputs[layer])
        if gradients is not None:
            torch.bmm(inputs[layer].transpose(1, 2), d_SBH, out=d_weights[layer])
            torch.sum(d_SBH, 1, keepdim=True, out=d_biases[layer])
        if layer > 0:
            d_SBH = torch.bmm(d_SBH, weights[layer].transpose(1, 2), out=work.gradients[layer - 1])
    if columns is None:
        return None
    if not weights:
        return d_SBH[:, :, columns].sum(0)
    return torch.bmm(d_SBH, weights[0][:, columns].transpose(1, 2)).sum(0)


class NumpyMLP:
    """The forward pass of a `StackedMLP` in numpy, on the same memory: for acting, where torch's overhead would rule.

    Make it after the parameters have come to their last place (`FlatParameters`), on the CPU.
    """

    def __init__(self, stack: StackedMLP) -> None:
        self.activation = stack.activation
        self.weights, self.biases, self.head_weights, self.head_biases = (
            [parameter.detach().numpy() for parameter in group]
            for group in (stack.weights, stack.biases, stack.head_weights, stack.head_biases)
        )
        self._networks = stack.networks
        self._buffers: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}

    def __call__(self, x_BI: np.ndarray) -> list[np.ndarray]:
        """Returns the output of each network, [B, K] each; valid until the next call with as large a batch."""
        batch = x_BI.shape[0]
        if batch not in self._buffers:
            self._buffers[batch] = (
                [np.empty((self._networks, batch, w.shape[2]), w.dtype) for w in self.weights],
                [np.empty((batch, w.shape[1]), w.dtype) for w in self.head_weights],
            )
        hidden, outputs = self._buffers[batch]
        h_SBH: Any = x_BI
        for weight, bias, output in zip(self.weights, self.biases, hidden, strict=True):
            np.matmul(h_SBH, weight, out=output)
            output += bias
            h_SBH = self.activation.numpy_(output)
        for s, (weight, bias, output) in enumerate(zip(self.head_weights, self.head_biases, outputs, strict=True)):
            np.matmul(h_SBH[s] if hidden else x_BI, weight, out=output)
            output += bias
        return outputs
