"""Feature extractors: convolutions for images; vectors are their own features.

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
"""A batch of observations: an array of vectors, a tensor of images, or a tensor for each part if mixed."""

VECTOR_FIELD = "vector"
"""The field of a mixed observation that holds its vector part."""

NATURE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
"""Channels, kernel, stride and padding of each convolution, for images of 36 x 36 pixels or more (Mnih et al. 2015)."""
SMALL = ((32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 2, 1))
"""Channels, kernel, stride and padding of each convolution, for smaller images, down to a single pixel."""
FEWEST_GATES = 3
"""Number of gates of the smaller kind of recurrent layer, the GRU."""


class ObservationLayout(Protocol):
    """Kind, shape and dtype of one encoded observation."""

    @property
    def kind(self) -> str:
        """`vector`, `image` or `mixed`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation: (O,), (C, H, W), or () if mixed."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32, uint8, or a structured type with a float32 field `vector` and a uint8 field for each image."""


class FeatureExtractor(nn.Module):
    """Converts observations to features [B, F]."""

    features: int
    """Number of features (F)."""


class VectorExtractor(FeatureExtractor):
    """Returns vectors unchanged."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, observations: Array) -> Array:
        """Returns the vectors [B, F]."""
        return observations


class ImageExtractor(FeatureExtractor):
    """Applies convolutions with rectifiers to images of bytes.

    On a CPU, the convolutions compute in the memory order "channels last" (B, H, W, C), in which torch's are faster.
    Images, weights and features have the order (C, H, W) all the same.
    """

    def __init__(self, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        super().__init__()
        channels, height, width = shape
        self.layers = _choose_layers(height, width)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for outputs, kernel, stride, padding in self.layers:
            weight = torch.empty(outputs, channels, kernel, kernel)
            orthogonal_(weight, HIDDEN_GAIN, rng)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(outputs)))
            channels = outputs
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.features = channels * height * width
        self._floats = torch.empty(0, *shape)

    def forward(self, observations: Tensor) -> Tensor:
        """Returns the features [B, F] of images, uint8 [B, C, H, W]; a backward pass must precede the next call."""
        x = self._to_floats(observations)
        # The first weights are divided by 255 instead of all pixels.
        weights = [self.weights[0] * (1.0 / 255.0), *self.weights[1:]]
        for i, ((_, _, stride, padding), weight) in enumerate(zip(self.layers, weights, strict=True)):
            x = functional.conv2d(x if i == 0 else functional.relu_(x), weight, self.biases[i], stride, padding)
        # The rectifier follows the change of order, because its gradient would be slow between two orders.
        return functional.relu_(x.flatten(1))

    def _to_floats(self, images: Tensor) -> Tensor:
        """Converts bytes to floats from 0 to 255; on a CPU in memory that the next call overwrites."""
        dtype, count = self.weights[0].dtype, len(images)
        if images.device.type != "cpu":
            return images.to(dtype)
        if len(self._floats) < count:
            # Kept, because the operating system would clear megabytes of new memory for each batch.
            self._floats = torch.empty(images.shape, dtype=dtype, memory_format=torch.channels_last)
        floats = self._floats[:count]
        for channel in range(images.shape[1]):  # a single copy takes twice as long
            floats[:, channel].copy_(images[:, channel])
        return floats


class MixedExtractor(FeatureExtractor):
    """Concatenates the features of each image, by its own `ImageExtractor`, and the vector part."""

    def __init__(self, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
        super().__init__()
        shapes = {name: dtype[name].shape for name in dtype.names or ()}
        self.vector_features = int(np.prod(shapes.pop(VECTOR_FIELD, (0,))))
        extractors = {name: ImageExtractor(shape, rng) for name, shape in shapes.items()}
        self.images = nn.ModuleDict(extractors)
        self.features = self.vector_features + sum(extractor.features for extractor in extractors.values())

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Returns the features [B, F] of a batch of each part."""
        parts = [extractor(observations[name]) for name, extractor in self.images.items()]
        if self.vector_features:
            parts.append(observations[VECTOR_FIELD])
        return torch.cat(parts, dim=1)


def count_fewest_weights(
    layout: ObservationLayout | None, hidden: Sequence[int], outputs: int, recurrent_units: int = 0
) -> int:
    """Returns the least number of weights, without biases, of a network for observations of a layout.

    If the layout is None, the feature extractor is left out; it has at least one feature.
    """
    weights, features = (0, 1) if layout is None else _count_extractor(layout)
    widths = [recurrent_units or features, *hidden, outputs]
    recurrent = FEWEST_GATES * recurrent_units * (features + recurrent_units)
    return weights + recurrent + sum(a * b for a, b in pairwise(widths))


def _count_extractor(layout: ObservationLayout) -> tuple[int, int]:
    """Returns the number of weights, and of features, of the built-in feature extractor for a layout."""
    fields = {} if layout.dtype.names is None else {name: layout.dtype[name].shape for name in layout.dtype.names}
    vector = fields.pop(VECTOR_FIELD, (0,)) if fields else layout.shape if layout.kind == "vector" else (0,)
    images = list(fields.values()) if fields else [layout.shape] if layout.kind == "image" else []
    counts = [_count_convolution(shape) for shape in images]
    return sum(weights for weights, _ in counts), prod(vector) + sum(features for _, features in counts)


def _count_convolution(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the number of weights, and of features, of an `ImageExtractor`."""
    channels, height, width = shape
    weights = 0
    for outputs, kernel, stride, padding in _choose_layers(height, width):
        weights += outputs * channels * kernel**2
        channels = outputs
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    return weights, channels * height * width


def _choose_layers(height: int, width: int) -> tuple[tuple[int, int, int, int], ...]:
    return NATURE if min(height, width) >= 36 else SMALL


def make_feature_extractor(layout: ObservationLayout, rng: np.random.Generator) -> FeatureExtractor:
    """Returns the feature extractor for observations of a layout."""
    if layout.kind == "vector":
        return VectorExtractor(layout.shape[0])
    if layout.kind == "image":
        return ImageExtractor(layout.shape, rng)
    return MixedExtractor(layout.dtype, rng)


def to_arrays(observations: np.ndarray, backend: Backend) -> Observations:
    """Converts a batch of observations to the input of a feature extractor, sharing memory if possible."""
    if observations.dtype.names is not None:
        # Torch requires aligned memory, and the fields of a packed record are not aligned.
        parts = {name: np.ascontiguousarray(observations[name]) for name in observations.dtype.names}
        return {name: torch.from_numpy(part).to(backend.device) for name, part in parts.items()}
    if observations.dtype == np.uint8:
        return torch.from_numpy(observations).to(backend.device)
    return backend.array(observations)
