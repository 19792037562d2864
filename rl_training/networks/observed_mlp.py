"""The network of all algorithms: MLPs on the features of an observation, with written-out gradients.

Shapes: B batch, I inputs, F features of the observation, A further inputs, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.networks.backend import Array, Backend
from rl_training.networks.feature_extractors import (
    ObservationLayout,
    Observations,
    VectorExtractor,
    make_feature_extractor,
)
from rl_training.networks.mlp import BoundMLPs, StackedMLP
from rl_training.networks.threads import THREADS


class Evaluated:
    """State of the last evaluation, for the backward pass; not an `nn.Module`, whose attributes are slow to set."""

    features: Any = None
    """The features with their graph, or the vectors themselves; None after an evaluation without gradients."""
    inputs: Array | None = None
    """The inputs of the MLPs, [B, I]."""
    outputs: list[Array]
    """The output of each MLP, [B, K] each."""


class ObservedMLP(nn.Module):
    """A stack of MLPs whose input is the features of an observation and further inputs (a critic's action).

    A loss passes its gradient with respect to the outputs to `backward`, which overwrites the `grad` of each parameter.
    The backward pass of the MLPs is written out; convolutions use autograd.
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
        """Makes the networks; `further_inputs` is their number (A), and for the other arguments see `StackedMLP`."""
        super().__init__()
        # Checkpoints name weights after this attribute, so its name must stay.
        self.body = make_feature_extractor(layout, rng)
        self._vectors = isinstance(self.body, VectorExtractor)
        inputs = self.body.features + further_inputs
        self.mlps = StackedMLP(inputs, hidden, outputs, activation, head_gains, rng)
        self._evaluated = Evaluated()

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.backend, self._bound, self._evaluated = backend, self.mlps.bound, Evaluated()
        self._bound_aside = BoundMLPs(self.mlps, backend)

    def evaluate(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each, without preparing for `backward`.

        They are valid until the next evaluation of a batch of equal size. `further_gradients` may follow.
        """
        self.prepare(observations, further_BA)
        return self.compute()

    def evaluate_aside(self, vectors_BO: Array) -> list[Array]:
        """Returns the output of each MLP for vector observations, while another thread evaluates others in this object.

        The outputs are valid until the next call with a batch of equal size; no gradient can follow.
        """
        return self._bound_aside.evaluate(vectors_BO)

    def forward(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each, and prepares for `backward`."""
        self.prepare(observations, further_BA, with_gradients=True)
        return self.compute()

    def prepare(
        self, observations: Observations, further_BA: Array | None = None, *, with_gradients: bool = False
    ) -> None:
        """Computes the inputs of the MLPs for `compute`; with gradients, `backward` may follow."""
        if self._vectors:
            features, features_BF = observations, observations
        else:
            with torch.set_grad_enabled(with_gradients), THREADS.in_torch():
                features = self.body(observations)
            features_BF = self.backend.view(features)
        inputs = features_BF if further_BA is None else self.backend.xp.concatenate((features_BF, further_BA), 1)
        self._evaluated.features, self._evaluated.inputs = features if with_gradients else None, inputs

    def lanes(self, batch: int) -> Sequence[int | None]:
        """Returns which MLPs `compute` and `further_gradients` should get in one task each; see `BoundMLPs.lanes`.

        Convolutions take both threads, so with images there is one task.
        """
        return self._bound.lanes(batch) if self._vectors else (None,)

    def compute(self, network: int | None = None) -> list[Array]:
        """Evaluates the MLPs, or one of them, on the inputs that `prepare` computed.

        Returns:
            The `outputs`; of the other MLPs, they are those of their own last evaluation.
        """
        self._evaluated.outputs = self._bound.evaluate(self._evaluated.inputs, network)
        return self._evaluated.outputs

    @property
    def outputs(self) -> list[Array]:
        """The output of each MLP in the last evaluation, [B, K] each."""
        return self._evaluated.outputs

    def backward(self, *d_outputs: Array) -> None:
        """Overwrites the gradients of all parameters, given the gradient with respect to each output, [B, K] each.

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
        d_features_BF = sum(self._bound.backpropagate(evaluated.inputs, d_outputs, columns=slice(self.body.features)))
        with THREADS.in_torch():
            evaluated.features.backward(self.backend.tensor(d_features_BF))

    def further_gradients(self, *d_outputs: Array, network: int | None = None) -> list[Array]:
        """Returns the gradient with respect to the further inputs of the last evaluation, [B, A], through each MLP.

        The gradients of the parameters stay unchanged.

        Args:
            *d_outputs: Gradient with respect to each output, [B, K] each; with `network`, only of that one.
            network: Index of the only MLP to go through.

        Raises:
            RuntimeError: Nothing was evaluated.
        """
        if self._evaluated.inputs is None:
            raise RuntimeError("`further_gradients` must follow an evaluation")
        columns = slice(self.body.features, None)
        return self._bound.backpropagate(
            self._evaluated.inputs, d_outputs, network=network, parameters=False, columns=columns
        )
