"""Plain spaces, whose numbers every supported machine and file format can hold: native byte order, 64 bits at most."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def make_plain_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Returns `space` with plain dtypes, or `space` itself if its dtypes are plain already.

    A float longer than 64 bits becomes float64; every other number keeps its type and gets the native byte order.
    """
    if isinstance(space, spaces.Dict):
        parts = {key: make_plain_space(part) for key, part in space.spaces.items()}
        same = all(parts[key] is part for key, part in space.spaces.items())
        return space if same else spaces.Dict(list(parts.items()), sort_keys=False)
    if isinstance(space, spaces.Tuple):
        items = [make_plain_space(part) for part in space.spaces]
        same = all(plain is part for plain, part in zip(items, space.spaces, strict=True))
        return space if same else spaces.Tuple(items)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
        return space
    dtype = _make_plain_dtype(np.dtype(space.dtype))
    return space if dtype == space.dtype else _replace_dtype(space, dtype)


def _make_plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    return dtype.newbyteorder("=")


def _replace_dtype(space: spaces.Box | spaces.Discrete | spaces.MultiDiscrete, dtype: np.dtype[Any]) -> gym.Space[Any]:
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # a bound beyond float64 becomes infinite
            return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype.type)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(space.n, start=space.start, dtype=dtype.type)
    return spaces.MultiDiscrete(space.nvec.astype(dtype), dtype=dtype.type, start=space.start.astype(dtype))
