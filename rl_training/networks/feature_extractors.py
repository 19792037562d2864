"""What turns a batch of observations into features: nothing for vectors, convolutions for images.

Shapes: B batch, F features, C, H, W of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.networks.backend import Array, Backend
from rl_training.networks.initialization import HIDDEN_GAIN, orthogonal_

Observations: TypeAlias = Array | Mapping[str, Tensor]
"""A batch: the backend's array of vectors, a tensor of images, or a tensor for each part of a mixed observation."""

VECTOR_FIELD = "vector"
"""The field of a mixed observation that is no image."""

NATURE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
"""Channels, kernel, stride, padding of each convolution (Mnih et al. 2015, Methods); for sides of 36 pixels or more."""
SMALL = ((32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 2, 1))
"""The same for smaller images, down to a single pixel."""


class ObservationLayout(Protocol):
    """One observation, as an array."""

    @property
    def kind(self) -> str:
        """`vector`, `image` or `mixed`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one observation: (O,), (C, H, W), or () where mixed."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32, uint8, or a structured type with a float32 field `vector` and a uint8 field for each image."""


class Body(nn.Module):
    """Turns observations into features [B, features]."""

    features: int


class VectorBody(Body):
    """Hands vectors on."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, observations: Array) -> Array:
        """[B, F] to [B, F]."""
        return observations


class ImageBody(Body):
    """Convolutions with rectifiers over images of bytes."""

    def __init__(self, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        super().__init__()
        channels, height, width = shape
        self.layers = _layers(height, width)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for outputs, kernel, stride, padding in self.layers:
            weight = torch.empty(outputs, channels, kernel, kernel)
            orthogonal_(weight, HIDDEN_GAIN, rng)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(outputs)))
            channels = outputs
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.features = channels * height * width

    def forward(self, observations: Tensor) -> Tensor:
        """Bytes [B, C, H, W] to [B, F]."""
        x = observations.to(self.weights[0].dtype) / 255.0
        for (_, _, stride, padding), weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            x = functional.relu(functional.conv2d(x, weight, bias, stride, padding))
        return x.flatten(1)


class MixedBody(Body):
    """An `ImageBody` for each image, beside the vector part."""

    def __init__(self, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
        super().__init__()
        shapes = {name: dtype[name].shape for name in dtype.names or ()}
        self.vector_features = int(np.prod(shapes.pop(VECTOR_FIELD, (0,))))
        bodies = {name: ImageBody(shape, rng) for name, shape in shapes.items()}
        self.images = nn.ModuleDict(bodies)
        self.features = self.vector_features + sum(body.features for body in bodies.values())

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """A batch of each part to [B, F]."""
        parts = [body(observations[name]) for name, body in self.images.items()]
        if self.vector_features:
            parts.append(observations[VECTOR_FIELD])
        return torch.cat(parts, dim=1)


def fewest_weights(layout: ObservationLayout, hidden: Sequence[int], outputs: int) -> int:
    """Returns how many weights, biases apart, a network on observations of a layout has at least.

    Args:
        layout: Kind, shape and dtype of one observation.
        hidden: Widths of its hidden layers.
        outputs: Width of its output.
    """
    fields = {} if layout.dtype.names is None else {name: layout.dtype[name].shape for name in layout.dtype.names}
    vector = fields.pop(VECTOR_FIELD, (0,)) if fields else layout.shape if layout.kind == "vector" else (0,)
    images = list(fields.values()) if fields else [layout.shape] if layout.kind == "image" else []
    counts = [_convolution_size(shape) for shape in images]
    widths = [prod(vector) + sum(features for _, features in counts), *hidden, outputs]
    return sum(weights for weights, _ in counts) + sum(a * b for a, b in pairwise(widths))


def _convolution_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the weights and the features of an `ImageBody`."""
    channels, height, width = shape
    weights = 0
    for outputs, kernel, stride, padding in _layers(height, width):
        weights += outputs * channels * kernel**2
        channels = outputs
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    return weights, channels * height * width


def _layers(height: int, width: int) -> tuple[tuple[int, int, int, int], ...]:
    return NATURE if min(height, width) >= 36 else SMALL


def make_body(layout: ObservationLayout, rng: np.random.Generator) -> Body:
    """Returns the body for observations of a layout."""
    if layout.kind == "vector":
        return VectorBody(layout.shape[0])
    if layout.kind == "image":
        return ImageBody(layout.shape, rng)
    return MixedBody(layout.dtype, rng)


def to_arrays(observations: np.ndarray, backend: Backend) -> Observations:
    """Returns a batch of observations as a body takes it, sharing memory where it can."""
    if observations.dtype.names is not None:
        # The fields of a packed record are not aligned, which torch asks for.
        parts = {name: np.ascontiguousarray(observations[name]) for name in observations.dtype.names}
        return {name: torch.from_numpy(part).to(backend.device) for name, part in parts.items()}
    if observations.dtype == np.uint8:
        return torch.from_numpy(observations).to(backend.device)
    return backend.array(observations)
