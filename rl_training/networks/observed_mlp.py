"""MLPs on an observation's features, with gradients that need no autograd: what all algorithms learn with.

Shapes: B batch, F features of the observation, A further inputs, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.networks.backend import Array, Backend
from rl_training.networks.feature_extractors import ObservationLayout, Observations, VectorBody, make_body
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.threads import THREADS


class Evaluated:
    """What the last evaluation leaves to a backward pass; no module, of which attributes are slow to set."""

    features: Any = None
    """The body's output with its graph, or vectors themselves; None after an evaluation without gradients."""
    inputs: Array | None = None
    """What went into the MLPs, [B, I]."""


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
        self._vectors = isinstance(self.body, VectorBody)
        inputs = self.body.features + further_inputs
        self.mlps = StackedMLP(inputs, hidden, outputs, activation, head_gains, rng)
        self._evaluated = Evaluated()

    def bind(self, backend: Backend) -> None:
        """Computes from now on with a backend, on the memory where parameters and gradients are now."""
        self.backend, self._bound, self._evaluated = backend, self.mlps.bound, Evaluated()

    def evaluate(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each; only `further_gradient` may follow.

        Like all outputs they are valid until the next evaluation of as large a batch.
        """
        if self._vectors:
            return self._evaluate(None, observations, further_BA)
        with torch.no_grad(), THREADS.in_torch():
            features_BF = self.body(observations)
        return self._evaluate(None, self.backend.view(features_BF), further_BA)

    def forward(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each, and keeps what `backward` needs."""
        if self._vectors:
            return self._evaluate(observations, observations, further_BA)
        with torch.enable_grad(), THREADS.in_torch():
            features_BF = self.body(observations)
        return self._evaluate(features_BF, self.backend.view(features_BF), further_BA)

    def backward(self, *d_outputs: Array) -> None:
        """Overwrites the gradient of every parameter, given that by each output, [B, K] each.

        Raises:
            RuntimeError: The last evaluation was not by `forward`.
        """
        evaluated = self._evaluated
        if evaluated.features is None:
            raise RuntimeError("a backward pass must follow `forward`, with no other evaluation between")
        if self._vectors:
            self._bound.backpropagate(evaluated.inputs, d_outputs)
            return
        for parameter in self.body.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        d_features_BF = self._bound.backpropagate(evaluated.inputs, d_outputs, columns=slice(self.body.features))
        with THREADS.in_torch():
            evaluated.features.backward(self.backend.tensor(d_features_BF))

    def further_gradient(self, *d_outputs: Array) -> Array:
        """Returns the gradient by the further inputs of the last evaluation, [B, A], and leaves the parameters' be.

        Raises:
            RuntimeError: Nothing was evaluated.
        """
        if self._evaluated.inputs is None:
            raise RuntimeError("the gradient by further inputs must follow an evaluation")
        columns = slice(self.body.features, None)
        return self._bound.backpropagate(self._evaluated.inputs, d_outputs, parameters=False, columns=columns)

    def _evaluate(self, kept: Any, features_BF: Array, further_BA: Array | None) -> list[Array]:
        inputs = features_BF
        if further_BA is not None:
            inputs = self.backend.xp.concatenate((features_BF, further_BA), 1)
        self._evaluated.features, self._evaluated.inputs = kept, inputs
        return self._bound.evaluate(inputs)
