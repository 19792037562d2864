"""Converts observations to the arrays that networks and buffers use, and actions back to the environment's form.

Shapes: `N` environments, `O` features of a vector, `C, H, W` channels, height and width of an image, `A` numbers in an
action.
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

from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.space_leaves import Leaf, UnsupportedSpace, list_leaves

__all__ = ["ActionCodec", "ObservationEncoder", "UnsupportedSpace", "space_from_json", "space_to_json"]

ObservationKind = Literal["vector", "image", "mixed"]
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]


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


class ObservationEncoder:
    """Turns observations of a space into one array of one dtype, so that buffers are plain preallocated arrays.

    `Box` and `MultiBinary` become float32 numbers; `Discrete` and `MultiDiscrete` are one-hot encoded. The parts of
    `Dict` and `Tuple` spaces are concatenated in order. A uint8 `Box` of pixels (bounds 0 to 255, two or three
    dimensions) is an image: it stays uint8, channels first. `kind` names the resulting form: `vector` float32 [O],
    `image` uint8 [C, H, W], or `mixed`, a structured dtype with a field `vector` float32 [O] and one field `image_0`,
    `image_1`, ... for each image.

    Args:
        space: The observation space of one environment.

    Raises:
        UnsupportedSpace: A part of `space` can't be encoded.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self._vectors: list[_VectorPart] = []
        self._images: list[_ImagePart] = []
        for leaf in list_leaves(space):
            if _is_image(leaf.space):
                self._images.append(_make_image_part(leaf, f"image_{len(self._images)}"))
            else:
                self._vectors.append(_VectorPart(leaf, self.vector_size, _count_features(leaf)))
        if not self._images and self.vector_size == 0:
            raise UnsupportedSpace(f"observation space {space} holds no number; at least one feature is needed")
        self._leaves = [part.leaf for part in self._vectors] + [part.leaf for part in self._images]
        self._plain = isinstance(space, spaces.Box) and not self._images
        self.kind: ObservationKind = "vector"
        self.shape: tuple[int, ...] = (self.vector_size,)
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        if self._images and not self._vectors and len(self._images) == 1:
            self.kind, self.shape, self.dtype = "image", self._images[0].shape, np.dtype(np.uint8)
        elif self._images:
            fields = [("vector", np.float32, (self.vector_size,))]
            fields += [(part.field, np.uint8, part.shape) for part in self._images]  # type: ignore[misc]
            self.kind, self.shape, self.dtype = "mixed", (), np.dtype(fields)

    @property
    def vector_size(self) -> int:
        """Number of features in the vector part (O)."""
        return sum(part.size for part in self._vectors)

    def vector(self, encoded: NDArray[Any]) -> NDArray[np.float32] | None:
        """Returns a view of the vector part [N, O] of encoded observations; None for a single image."""
        if self.kind == "image":
            return None
        return encoded["vector"] if self.kind == "mixed" else encoded

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
        count = len(columns[0])
        if self.kind == "image":
            return self._images[0].frames(columns[0])
        encoded = np.zeros((count, *self.shape), self.dtype)
        vector = self.vector(encoded)
        assert vector is not None
        for part, values in zip(self._vectors, columns, strict=False):
            part.write(values, vector)
        for image, values in zip(self._images, columns[len(self._vectors) :], strict=True):
            encoded[image.field] = image.frames(values)
        return encoded


class ActionCodec:
    """Converts a batch of the policy's actions to the units, shape and dtype of the environment.

    The policy counts discrete choices from 0 and sees every other action as a flat row. `kind`, `shape` and `dtype`
    describe one action of the policy: `discrete` int64 [], `multi_discrete` int64 [A], `multi_binary` int8 [A],
    `box` float32 [A].

    Args:
        space: The action space of one environment.
        scaled: Whether the policy's `Box` actions lie in [-1, 1], where -1 is the lower and 1 the upper bound of each
            dimension. Otherwise they are in the environment's units.

    Raises:
        UnsupportedSpace: `space` can't be converted, or `scaled` is set and `space` is not a `Box` with bounds.
    """

    def __init__(self, space: gym.Space[Any], *, scaled: bool = False) -> None:
        self.space, self.scaled = space, scaled
        self.kind: ActionKind
        self.dtype: np.dtype[Any]
        self.nvec: tuple[int, ...] = ()
        """Number of choices: (n,) for `Discrete`, one entry per dimension for `MultiDiscrete`, else empty."""
        if isinstance(space, spaces.Discrete):
            self.kind, self.dtype, self.nvec = "discrete", np.dtype(np.int64), (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete):
            self.kind, self.dtype = "multi_discrete", np.dtype(np.int64)
            self.nvec = tuple(int(n) for n in space.nvec.ravel())
        elif isinstance(space, spaces.MultiBinary):
            self.kind, self.dtype = "multi_binary", np.dtype(np.int8)
        elif isinstance(space, spaces.Box):
            self.kind, self.dtype = "box", np.dtype(np.float32)
        else:
            raise UnsupportedSpace(
                f"action space {space} is not supported; Discrete, MultiDiscrete, MultiBinary and Box are"
            )
        self._env_shape: tuple[int, ...] = space.shape or ()
        self._env_dtype = np.dtype(space.dtype)
        start = getattr(space, "start", 0)
        self._start = start if np.any(start) else None
        self.shape: tuple[int, ...] = () if self.kind == "discrete" else (prod(self._env_shape),)
        if self.size == 0:
            raise UnsupportedSpace(f"action space {space} holds no number; at least one is needed")
        if scaled and not (isinstance(space, spaces.Box) and space.is_bounded()):
            raise UnsupportedSpace(f"action space {space} has no bounds to scale actions to; a bounded Box has")

    @property
    def size(self) -> int:
        """Count of numbers in one action (1 for `Discrete`)."""
        return prod(self.shape)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Returns the actions for the environments, in a new array.

        Args:
            actions: The policy's actions, [N, *shape]. `Box` actions are scaled if the codec is `scaled`, and clipped
                to the bounds of the space.
        """
        space = self.space
        actions = actions.reshape((len(actions), *self._env_shape))
        if isinstance(space, spaces.Box):
            return self._within_bounds(actions, space)
        if self._start is not None:
            actions = actions + self._start
        return actions.astype(self._env_dtype)

    def _within_bounds(self, actions: NDArray[Any], space: spaces.Box) -> NDArray[Any]:
        if self.scaled:
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            share = 0.5 * (actions.astype(np.float64) + 1.0)
            actions = (1.0 - share) * low + share * high  # as low + share * (high - low) could overflow
        if self._env_dtype.kind == "f":
            # Cast before clipping: a float32 bound may lie above the float64 bound that it was rounded from.
            actions = actions.astype(self._env_dtype).clip(space.low, space.high)
        else:
            actions = np.rint(actions.astype(np.float64).clip(space.low, space.high))
        return actions.astype(self._env_dtype, copy=False)


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
