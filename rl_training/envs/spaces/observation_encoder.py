"""Converts observations to the arrays that networks and buffers use.

Shapes: `N` environments, `O` features of a vector, `C, H, W` channels, height and width of an image, `M` actions that a
mask tells of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.space_leaves import Leaf, UnsupportedSpace, list_leaves, list_mask_leaves
from rl_training.envs.spaces.action_mask import FEATURES, MASK

ObservationKind = Literal["vector", "image", "mixed"]


@dataclass(frozen=True)
class _VectorPart:
    leaf: Leaf
    offset: int
    size: int

    def write(self, values: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Writes a batch of this part to its columns of `out` [N, O]."""
        columns = out[:, self.offset : self.offset + self.size]
        space = self.leaf.space
        if isinstance(space, spaces.Discrete):
            _write_one_hot(values.reshape(len(values), 1) - space.start, np.array([space.n]), columns)
        elif isinstance(space, spaces.MultiDiscrete):
            _write_one_hot((values - space.start).reshape(len(values), -1), space.nvec.ravel(), columns)
        else:
            columns[:] = _cast_to_float32(values).reshape(len(values), -1)

    def feature(self, index: int) -> str:
        """Returns the name of the feature in column `index` of this part."""
        space = self.leaf.space
        if isinstance(space, spaces.Box | spaces.MultiBinary):
            return self.leaf.feature(tuple(int(i) for i in np.unravel_index(index, space.shape)))
        return self.leaf.name or str(index)


@dataclass(frozen=True)
class _ImagePart:
    leaf: Leaf
    field: str
    channels_first: bool
    shape: tuple[int, int, int]

    def frames(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns a batch of this part as uint8 [N, C, H, W]."""
        if values.ndim == 3:
            return values[:, None]
        return values if self.channels_first else np.ascontiguousarray(values.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Features:
    """Kind, shape and dtype of what networks see of one encoded observation."""

    kind: ObservationKind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ObservationEncoder:
    """Turns observations of a space into one array of one dtype, so that buffers are plain preallocated arrays.

    `Box` and `MultiBinary` become float32 numbers; `Discrete` and `MultiDiscrete` are one-hot encoded. The parts of
    `Dict` and `Tuple` spaces are concatenated in order. A uint8 `Box` of pixels (bounds 0 to 255, two or three
    dimensions) is an image: it stays uint8, channels first. `kind` names the resulting form: `vector` float32 [O],
    `image` uint8 [C, H, W], or `mixed`, a structured dtype with a field `vector` float32 [O] and one field `image_0`,
    `image_1`, ... for each image.

    An action mask is no feature: observations with one are records of the features and the mask (`action_mask.py`).

    Args:
        space: The observation space of one environment.
        mask_key: The key of the part of a `Dict` space that holds the action mask; None without one.

    Attributes:
        features: Layout of what networks see: that of complete observations, unless they have a mask.

    Raises:
        UnsupportedSpace: A part of `space` can't be encoded, or `mask_key` names no part of it.
    """

    def __init__(self, space: gym.Space[Any], mask_key: str | None = None) -> None:
        self.space, self.mask_key = space, mask_key
        self._vectors: list[_VectorPart] = []
        self._images: list[_ImagePart] = []
        self._masks = [] if mask_key is None else list_mask_leaves(space, mask_key)
        for leaf in list_leaves(space):
            if leaf in self._masks:
                continue
            if _is_image(leaf.space):
                self._images.append(_make_image_part(leaf, f"image_{len(self._images)}"))
            else:
                self._vectors.append(_VectorPart(leaf, self.vector_size, _count_features(leaf)))
        if not self._images and self.vector_size == 0:
            raise UnsupportedSpace(f"observation space {space} holds no number; at least one feature is needed")
        seen = [part.leaf for part in self._vectors] + [part.leaf for part in self._images]
        self._leaves = [*seen, *self._masks]
        self._plain = isinstance(space, spaces.Box) and not self._images
        self.features = self._lay_out()
        self.kind, self.shape, self.dtype = self.features.kind, self.features.shape, self.features.dtype
        if self._masks:
            fields = [(FEATURES, self.features.dtype, self.features.shape), (MASK, np.bool_, (self.mask_size,))]
            self.shape, self.dtype = (), np.dtype(fields)

    def _lay_out(self) -> Features:
        if not self._images:
            return Features("vector", (self.vector_size,), np.dtype(np.float32))
        if not self._vectors and len(self._images) == 1:
            return Features("image", self._images[0].shape, np.dtype(np.uint8))
        fields = [("vector", np.float32, (self.vector_size,))]
        fields += [(part.field, np.uint8, part.shape) for part in self._images]  # type: ignore[misc]
        return Features("mixed", (), np.dtype(fields))

    @property
    def vector_size(self) -> int:
        """Number of features in the vector part (O)."""
        return sum(part.size for part in self._vectors)

    @property
    def mask_size(self) -> int:
        """Number of actions that a mask tells of (M); 0 without masks."""
        return sum(prod(leaf.space.shape or ()) for leaf in self._masks)

    def vector(self, encoded: NDArray[Any]) -> NDArray[np.float32] | None:
        """Returns a view of the vector part [N, O] of encoded observations; None for a single image."""
        if self.kind == "image":
            return None
        features = encoded[FEATURES] if self._masks else encoded
        return features["vector"] if self.kind == "mixed" else features

    def feature_name(self, index: int) -> str:
        """Returns the name of column `index` of the vector part, in terms of the environment's space."""
        for part in self._vectors:
            if index < part.offset + part.size:
                return part.feature(index - part.offset)
        raise IndexError(f"the vector part has {self.vector_size} numbers, not {index + 1}")

    def columns(self, path: tuple[str | int, ...]) -> slice | None:
        """Returns the columns of the vector part that hold the leaf at `path`; None if there is no such leaf."""
        found = [slice(part.offset, part.offset + part.size) for part in self._vectors if part.leaf.path == path]
        return found[0] if found else None

    def encode(self, batch: Any) -> NDArray[Any]:
        """Encodes the observations of a vector environment: an array, or a dict or tuple of arrays.

        Returns:
            The encoded observations [N, *shape], which may share memory with `batch`.
        """
        if self._plain:
            return _cast_to_float32(np.asarray(batch)).reshape(len(batch), -1)
        return self._assemble([np.asarray(leaf.pick(batch)) for leaf in self._leaves])

    def encode_list(self, observations: Sequence[Any]) -> NDArray[Any]:
        """Encodes a list of observations of single environments.

        Returns:
            A new array [n, *shape].
        """
        if self._plain:
            return self.encode(np.array(observations))
        return self._assemble(
            [np.stack([np.asarray(leaf.pick(observation)) for observation in observations]) for leaf in self._leaves]
        )

    def _assemble(self, columns: list[NDArray[Any]]) -> NDArray[Any]:
        if not self._masks:
            return self._assemble_features(columns)
        count, seen = len(columns[0]), len(columns) - len(self._masks)
        encoded = np.zeros(count, self.dtype)
        encoded[FEATURES] = self._assemble_features(columns[:seen])
        encoded[MASK] = np.concatenate([part.reshape(count, -1) != 0 for part in columns[seen:]], axis=1)
        return encoded

    def _assemble_features(self, columns: list[NDArray[Any]]) -> NDArray[Any]:
        if self.kind == "image":
            return self._images[0].frames(columns[0])
        features = np.zeros((len(columns[0]), *self.features.shape), self.features.dtype)
        vector = features["vector"] if self.kind == "mixed" else features
        for part, values in zip(self._vectors, columns, strict=False):
            part.write(values, vector)
        for image, values in zip(self._images, columns[len(self._vectors) :], strict=True):
            features[image.field] = image.frames(values)
        return features


def _cast_to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):  # An overflow becomes an infinity, which the caller detects and reports.
        return values.astype(np.float32)


def _write_one_hot(choices: NDArray[Any], counts: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Writes choices [N, K], each below its count [K], as concatenated one-hot rows to `out`, which holds zeros."""
    if ((choices < 0) | (choices >= counts)).any():
        raise ValueError(
            f"a discrete observation is outside its space: {choices.tolist()} of {counts.tolist()} choices"
        )
    offsets = np.concatenate(([0], np.cumsum(counts)[:-1]))
    out[np.arange(len(choices))[:, None], choices + offsets] = 1.0


def _count_features(leaf: Leaf) -> int:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary):
        return prod(space.shape)
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and _is_pixels(space):
            raise UnsupportedSpace(
                f"observation {leaf.name or 'space'} {space} is of pixels in {len(space.shape)} dimensions; an image "
                f"has two or three: for stacked frames, use GrayscaleObservation before FrameStackObservation"
            )
        return prod(space.shape)
    raise UnsupportedSpace(
        f"observation {leaf.name or 'space'} {space} is not supported; Box, Discrete, MultiDiscrete, MultiBinary, and "
        f"Dict and Tuple of these are"
    )


def _is_pixels(space: spaces.Box) -> bool:
    return len(space.shape) >= 2 and bool((space.low == 0).all() and (space.high == 255).all())


def _is_image(space: gym.Space[Any]) -> bool:
    return (
        isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3) and _is_pixels(space)
    )


def _make_image_part(leaf: Leaf, field: str) -> _ImagePart:
    shape = leaf.space.shape
    assert shape is not None
    if len(shape) == 2:
        return _ImagePart(leaf, field, True, (1, *shape))
    # The smaller side is the channels: (4, 84, 84) is a stack of frames, (84, 84, 3) a colour picture.
    if shape[0] < shape[2]:
        return _ImagePart(leaf, field, True, (shape[0], shape[1], shape[2]))
    return _ImagePart(leaf, field, False, (shape[2], shape[0], shape[1]))
