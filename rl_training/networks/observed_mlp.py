"""MLPs on an observation's features, with gradients that need no autograd: what off-policy algorithms learn with.

Shapes: B batch, N environments, F features of the observation, A further inputs, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.networks.bodies import ObservationLayout, Observations, VectorBody, make_body, to_tensors
from rl_training.networks.mlp import NumpyMLP, StackedMLP


class ObservedMLP(nn.Module):
    """A stack of MLPs on the features of an observation, and on further inputs beside them (a critic's action).

    A loss hands its gradient by the outputs to `backward`, which overwrites each parameter's `grad`. The MLPs' part is
    written out; convolutions go autograd's way.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        further_inputs: int,
        hidden: Sequence[int],
        outputs: Sequence[int],
        activation: str,
        head_gains: Sequence[float],
        rng: np.random.Generator,
    ) -> None:
        """Makes the networks.

        Args:
            layout: Kind, shape and dtype of one observation.
            further_inputs: A.
            hidden: Widths of the hidden layers of each MLP.
            outputs: Width of each MLP's output.
            activation: A key of `ACTIVATIONS`.
            head_gains: Gain of each MLP's head.
            rng: The stream `init`.
        """
        super().__init__()
        self.body = make_body(layout, rng)
        inputs = self.body.features + further_inputs
        self.mlps = StackedMLP(inputs, hidden, outputs, activation, head_gains, rng)
        self._features: Tensor | None = None
        self._inputs: Tensor | None = None

    def evaluate(self, observations: Observations, further_BA: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the output of each MLP, [B, K] each; only `further_gradient` may follow."""
        with torch.no_grad():
            features_BF = self.body(observations)
        self._features, self._inputs = None, _beside(features_BF, further_BA)
        return self.mlps.evaluate(self._inputs)

    def forward(self, observations: Observations, further_BA: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the output of each MLP, [B, K] each, and keeps what `backward` needs."""
        with torch.enable_grad():
            self._features = self.body(observations)
        self._inputs = _beside(self._features.detach(), further_BA)
        return self.mlps.evaluate(self._inputs)

    def backward(self, *d_outputs: Tensor) -> None:
        """Overwrites the gradient of every parameter, given that by each output, [B, K] each.

        Raises:
            RuntimeError: The last evaluation was not by `forward`.
        """
        if self._features is None or self._inputs is None:
            raise RuntimeError("a backward pass must follow `forward`, with no other evaluation between")
        if not self._features.requires_grad:
            self.mlps.backpropagate(self._inputs, d_outputs)
            return
        for parameter in self.body.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        d_features_BF = self.mlps.backpropagate(self._inputs, d_outputs, columns=slice(self.body.features))
        self._features.backward(d_features_BF)  # type: ignore[no-untyped-call]

    def further_gradient(self, *d_outputs: Tensor) -> Tensor:
        """Returns the gradient by the further inputs of the last evaluation, [B, A], and leaves the parameters' be.

        Raises:
            RuntimeError: Nothing was evaluated.
        """
        if self._inputs is None:
            raise RuntimeError("the gradient by further inputs must follow an evaluation")
        columns = slice(self.body.features, None)
        gradient = self.mlps.backpropagate(self._inputs, d_outputs, parameters=False, columns=columns)
        assert gradient is not None
        return gradient


class ArrayEvaluator:
    """Evaluates an `ObservedMLP` of observations alone on arrays, for acting.

    MLPs on the CPU are evaluated by numpy on the same memory; anything else by torch. Make it after the parameters have
    come to their last place (`FlatParameters`).
    """

    def __init__(self, network: ObservedMLP, device: torch.device) -> None:
        self.network, self.device = network, device
        numpy_can = device.type == "cpu" and isinstance(network.body, VectorBody)
        self._numpy = NumpyMLP(network.mlps) if numpy_can else None

    def __call__(self, observations: np.ndarray[Any, Any]) -> list[np.ndarray]:
        """Returns the output of each MLP, [N, K] each, valid until the next call."""
        if self._numpy is not None:
            return self._numpy(observations)
        outputs = self.network.evaluate(to_tensors(observations, self.device))
        return [output.cpu().numpy() for output in outputs]


def _beside(features_BF: Tensor, further_BA: Tensor | None) -> Tensor:
    return features_BF if further_BA is None else torch.cat([features_BF, further_BA], dim=1)
