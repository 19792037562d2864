"""The network of all algorithms: MLPs on the features of an observation, with written-out gradients.

Shapes: B batch, I inputs, F features of the observation, A further inputs, K outputs of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.config.network import BodyConfig
from rl_training.networks.backend import Array, Backend
from rl_training.networks.feature_extractors import (
    ObservationLayout,
    Observations,
    VectorExtractor,
    make_feature_extractor,
)
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.named_body.module_body import make_body
from rl_training.networks.threads import THREADS, Quickest


class Evaluated:
    """State of the last evaluation, for the backward pass; not an `nn.Module`, whose attributes are slow to set."""

    features: Any = None
    """The features with their graph, or the vectors themselves; None after an evaluation without gradients."""
    inputs: Array | None = None
    """The inputs of the MLPs, [B, I]."""


class ObservedMLP(nn.Module):
    """A stack of MLPs whose input is the features of an observation and further inputs (a critic's action).

    A loss passes its gradient with respect to the outputs to `backward`, which overwrites the `grad` of each parameter.
    The backward pass of the MLPs is written out; convolutions, and bodies that the settings name, use autograd.
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
        body: BodyConfig | None = None,
    ) -> None:
        """Makes the networks.

        Args:
            layout: The layout of the observations.
            further_inputs: The number of further inputs (A).
            hidden: See `StackedMLP`, for the arguments that follow too.
            outputs: The number of outputs of each MLP (K).
            activation: `tanh` or `relu`.
            head_gains: The gain of the first weights of each MLP's last layer.
            rng: Generator of the stream `init`.
            body: The class of the body; by default the built-in feature extractor for the layout.

        Raises:
            ConfigError: The body can't be made or used.
        """
        super().__init__()
        # Checkpoints name weights after this attribute, so its name must stay.
        self.body = make_feature_extractor(layout, rng) if body is None else make_body(body, layout, rng)
        self._vectors = isinstance(self.body, VectorExtractor)
        inputs = self.body.features + further_inputs
        self.mlps = StackedMLP(inputs, hidden, outputs, activation, head_gains, rng)
        self._evaluated, self._quickest = Evaluated(), Quickest()

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.backend, self._bound, self._evaluated = backend, self.mlps.bound, Evaluated()

    def all_threads(self, batch: int) -> AbstractContextManager[None]:
        """Uses the threads in the quickest way within the block, if a batch of this size is large."""
        return THREADS.in_quickest_way(self._quickest) if self._bound.is_large(batch) else nullcontext()

    def evaluate(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each, without preparing for `backward`; `further_gradient` may follow.

        The outputs are valid until the next evaluation of a batch of equal size.
        """
        return self._bound.evaluate(self._prepare_inputs(observations, further_BA))

    def evaluate_first(self, observations: Observations, further_BA: Array) -> Array:
        """Returns the output of the first MLP alone, [B, K], as `evaluate`; `first_further_gradient` may follow."""
        return self._bound.evaluate_first(self._prepare_inputs(observations, further_BA))

    def forward(self, observations: Observations, further_BA: Array | None = None) -> list[Array]:
        """Returns the output of each MLP, [B, K] each, and prepares for `backward`."""
        if self._vectors:
            return self._bound.evaluate(self._keep(observations, observations, further_BA))
        with torch.enable_grad(), THREADS.in_torch():
            features_BF = self.body(observations)
        return self._bound.evaluate(self._keep(features_BF, self.backend.view(features_BF), further_BA))

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
        d_features_BF = self._bound.backpropagate(evaluated.inputs, d_outputs, columns=slice(self.body.features))
        if evaluated.features.requires_grad:  # a body of one's own may have nothing to learn
            with THREADS.in_torch():
                evaluated.features.backward(self.backend.tensor(d_features_BF))

    def further_gradient(self, *d_outputs: Array) -> Array:
        """Returns the gradient with respect to the further inputs of the last evaluation, [B, A].

        The gradients of the parameters stay unchanged.

        Raises:
            RuntimeError: Nothing was evaluated.
        """
        if self._evaluated.inputs is None:
            raise RuntimeError("`further_gradient` must follow an evaluation")
        columns = slice(self.body.features, None)
        return self._bound.backpropagate(self._evaluated.inputs, d_outputs, parameters=False, columns=columns)

    def first_further_gradient(self, d_output_BK: Array) -> Array:
        """Returns the gradient with respect to the further inputs of the last `evaluate_first`, [B, A].

        The gradients of the parameters stay unchanged.
        """
        return self._bound.backpropagate_first(
            self._evaluated.inputs, d_output_BK, columns=slice(self.body.features, None)
        )

    def _prepare_inputs(self, observations: Observations, further_BA: Array | None) -> Array:
        """Returns the inputs of the MLPs, [B, I], for an evaluation without `backward`."""
        if self._vectors:
            return self._keep(None, observations, further_BA)
        with torch.no_grad(), THREADS.in_torch():
            features_BF = self.body(observations)
        return self._keep(None, self.backend.view(features_BF), further_BA)

    def _keep(self, features: Any, features_BF: Array, further_BA: Array | None) -> Array:
        """Keeps and returns the inputs of the MLPs, [B, I]."""
        inputs = features_BF
        if further_BA is not None:
            inputs = self.backend.xp.concatenate((features_BF, further_BA), 1)
        self._evaluated.features, self._evaluated.inputs = features, inputs
        return inputs
