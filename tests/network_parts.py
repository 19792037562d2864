"""Helpers of the network tests: the same networks in torch's autograd, and both backends on the CPU."""

from typing import Any

import numpy as np
import torch

from rl_training.networks.backend import NUMPY, Backend
from rl_training.networks.mlp import ACTIVATIONS, StackedMLP
from rl_training.networks.observed_mlp import ObservedMLP
from tests.recorded_ops import recorded_ops

CPU = torch.device("cpu")
BACKENDS = {
    "numpy": NUMPY,
    "torch": Backend(CPU, torch),
    "recorded": Backend(CPU, torch, recorded_ops),
}
"""What computes on the CPU, and what computes elsewhere, here on the CPU too: call by call, and by recordings."""


def reference(stack: StackedMLP, x: torch.Tensor) -> list[torch.Tensor]:
    """A stack's networks one after the other, by autograd."""
    (activation,) = (name for name, each in ACTIVATIONS.items() if each == stack.activation)
    outputs = []
    for s in range(stack.networks):
        h = x
        for weight, bias in zip(stack.weights, stack.biases, strict=True):
            h = getattr(torch, activation)(h @ weight[s] + bias[s])
        outputs.append(h @ stack.head_weights[s] + stack.head_biases[s])
    return outputs


def by_autograd(network: ObservedMLP, observations: Any, further: torch.Tensor | None = None) -> list[torch.Tensor]:
    """An `ObservedMLP` by autograd, given tensors."""
    features = network.body(observations)
    return reference(network.mlps, features if further is None else torch.cat([features, further], 1))


def to_tensors(observations: np.ndarray) -> Any:
    """A batch as one tensor, or one for each of its parts."""
    if observations.dtype.names is None:
        return torch.from_numpy(observations)
    return {name: torch.from_numpy(observations[name].copy()) for name in observations.dtype.names}
