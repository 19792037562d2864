"""The networks of policy and value function with a memory of the episode so far.

Shapes: L steps of a sequence, C sequences, N environments, B rows (transitions), F features of an observation, P parts
of a memory, H units of a recurrent layer, K outputs of the policy head. The first axis of the memories of both
networks is preceded by that of sequences or environments: [C, 2, P, H], policy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.config.network import BodyConfig
from rl_training.networks.backend import Array, Backend
from rl_training.networks.distributions import Distribution
from rl_training.networks.feature_extractors import (
    ObservationLayout,
    Observations,
    VectorExtractor,
    make_feature_extractor,
    to_arrays,
)
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.named_body.module_body import make_body
from rl_training.networks.recurrent.recurrent_layer import Kind, RecurrentLayer
from rl_training.networks.threads import THREADS


class Sequences(NamedTuple):
    """Sequences of steps within an episode, one after the other: all rows of the first, then those of the second."""

    observations: Observations
    """[B, *O] the observations."""
    lengths_C: np.ndarray
    """int64 [C] the number of rows of each sequence."""
    memories: np.ndarray
    """float32 [C, 2, P, H] the memories of both networks before the first row of each sequence; zero where an episode
    begins."""


class RecurrentMLP(nn.Module):
    """An MLP on the outputs of a recurrent layer."""

    backend: Backend

    def __init__(
        self,
        layer: RecurrentLayer,
        hidden: Sequence[int],
        outputs: int,
        activation: str,
        head_gain: float,
        rng: np.random.Generator,
    ) -> None:
        """Makes the MLP; for the arguments see `StackedMLP`."""
        super().__init__()
        self.layer = layer
        self.mlp = StackedMLP(layer.memory_shape[1], hidden, (outputs,), activation, (head_gain,), rng)

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.backend = backend

    def step(self, features_NF: Tensor, memories_NPH: np.ndarray) -> tuple[Array, np.ndarray]:
        """Evaluates one step without preparing for `backward`.

        Returns:
            The outputs [N, K], valid until the next evaluation of as many rows, and the memories [N, P, H] after it.
        """
        with torch.no_grad():
            top_1NH, memories = self.layer(features_NF[None], torch.from_numpy(memories_NPH).to(features_NF))
        (outputs_NK,) = self.mlp.bound.evaluate(self.backend.view(top_1NH[0]))
        return outputs_NK, memories.cpu().numpy()

    def forward(self, features_LCF: Tensor, memories_CPH: Tensor, filled_CL: Tensor) -> Array:
        """Evaluates sequences and prepares for `backward`; returns the outputs of the filled steps, [B, K]."""
        top_LCH, _ = self.layer(features_LCF, memories_CPH)
        self._top_BH = top_LCH.transpose(0, 1)[filled_CL]
        self._inputs = self.backend.view(self._top_BH)
        return self.mlp.bound.evaluate(self._inputs)[0]

    def backward(self, d_outputs_BK: Array) -> tuple[Tensor, Tensor]:
        """Overwrites the gradients of the MLP; returns the outputs of the layer [B, H] and the gradient by them."""
        d_top_BH = self.mlp.bound.backpropagate(self._inputs, (d_outputs_BK,), columns=slice(None))
        return self._top_BH, self.backend.tensor(d_top_BH)


class RecurrentActorCritic(nn.Module):
    """Policy and value function, each with a recurrent layer of its own between the features and its MLP.

    The two share the convolutions of images, or a body that the settings name; the recurrent layers share nothing. The
    gradients of the MLPs are written out, and autograd has those of recurrent layers and of what is before them.

    Attributes:
        memory_shape: Shape of the memories of both networks in one environment, (2, P, H).
    """

    backend: Backend

    def __init__(
        self,
        layout: ObservationLayout,
        distribution: Distribution,
        kind: Kind,
        units: int,
        hidden: Sequence[int],
        activation: str,
        rng: np.random.Generator,
        body: BodyConfig | None = None,
    ) -> None:
        """Makes the networks: `kind` and `units` are those of the recurrent layers, the others as for `ActorCritic`."""
        super().__init__()
        self.body = make_feature_extractor(layout, rng) if body is None else make_body(body, layout, rng)
        layers = [RecurrentLayer(kind, self.body.features, units, rng) for _ in range(2)]
        self.memory_shape = (2, *layers[0].memory_shape)
        self.policy = RecurrentMLP(layers[0], hidden, distribution.outputs, activation, POLICY_GAIN, rng)
        self.value = RecurrentMLP(layers[1], hidden, 1, activation, VALUE_GAIN, rng)
        self.distribution = distribution
        self._by_autograd = [*self.body.parameters(), *(each for layer in layers for each in layer.parameters())]

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.backend = backend

    def step(self, observations: np.ndarray, memories: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Evaluates both networks on one step.

        Args:
            observations: [N, *O].
            memories: [N, 2, P, H] before the step.

        Returns:
            Copies of the policy's outputs [N, K] and of the values [N], and the memories [N, 2, P, H] after the step.
        """
        features_NF = self._extract(observations)
        outputs_NK, of_policy = self.policy.step(features_NF, memories[:, 0])
        values_N1, of_value = self.value.step(features_NF, memories[:, 1])
        outputs, values = (self.backend.numpy(output).copy() for output in (outputs_NK, values_N1[:, 0]))
        return outputs, values, np.stack((of_policy, of_value), axis=1)

    def step_policy(self, observations: np.ndarray, memories: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluates the policy alone on one step; for the arguments see `step`.

        Args:
            observations: [N, *O].
            memories: [N, P, H], those of the policy before the step.

        Returns:
            A copy of its outputs [N, K], and its memories [N, P, H] after the step.
        """
        outputs_NK, after = self.policy.step(self._extract(observations), memories)
        return self.backend.numpy(outputs_NK).copy(), after

    def forward(self, sequences: Sequences) -> list[Array]:
        """Returns the policy's outputs [B, K] and the values [B, 1], and prepares for `backward`."""
        filled_CL = np.arange(sequences.lengths_C.max()) < sequences.lengths_C[:, None]
        filled = torch.from_numpy(filled_CL).to(self.backend.device)
        with self._all_threads():
            features_BF = self._find_features(sequences.observations)
            features_CLF = features_BF.new_zeros((*filled.shape, features_BF.shape[1]))
            features_CLF[filled] = features_BF
            memories = torch.from_numpy(sequences.memories).to(features_BF)
            each = ((self.policy, memories[:, 0]), (self.value, memories[:, 1]))
            return [one(features_CLF.transpose(0, 1), memory, filled) for one, memory in each]

    def backward(self, d_outputs_BK: Array, d_values_B1: Array) -> None:
        """Overwrites the gradients of all parameters, given the gradient with respect to each output of `forward`."""
        tops, gradients = zip(self.policy.backward(d_outputs_BK), self.value.backward(d_values_B1), strict=True)
        for parameter in self._by_autograd:
            assert parameter.grad is not None
            parameter.grad.zero_()
        with self._all_threads():
            torch.autograd.backward(tops, gradients)

    def _extract(self, observations: np.ndarray) -> Tensor:
        """Returns the features [N, F] of observations, without a graph."""
        with torch.no_grad(), self._all_threads():
            return self._find_features(to_arrays(observations, self.backend))

    def _find_features(self, observations: Observations) -> Tensor:
        if isinstance(self.body, VectorExtractor):
            return self.backend.tensor(observations)
        features_BF: Tensor = self.body(observations)
        return features_BF

    def _all_threads(self) -> AbstractContextManager[None]:
        """Lets torch use all threads within the block for convolutions and bodies; vectors have none."""
        return nullcontext() if isinstance(self.body, VectorExtractor) else THREADS.in_torch()
