"""Converts spaces to JSON and back, so that a policy can be served where its environment is not installed.

A description may come from an untrusted source. So nothing is unpickled, no space is made before its size has been
checked, and the space that results must have exactly the same description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.space_leaves import UnsupportedSpace
from rl_training.errors import one_line

MOST_BYTES = 8 * 2**20
"""Limit for the lower, or the upper, bounds of a Box: an image of 8 MiB, or 2 million float32 numbers."""
MOST_NUMBERS = 60_000
"""Limit for a list of numbers, such as the lower bounds of a Box that are not all the same."""

DTYPES = frozenset({"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}) | {
    "float16",
    "float32",
    "float64",
}


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Returns a description of `space` of strings, numbers, lists and dicts that is strict JSON.

    Raises:
        UnsupportedSpace: `space` or a part of it is too large, or of a kind that `space_from_json` can't build.
    """
    if isinstance(space, spaces.Box):
        _require_small(space.shape, np.dtype(space.dtype).name)
        bounds = {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
        return {"type": "Box", **bounds, "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.Discrete):
        return {
            "type": "Discrete",
            "n": int(space.n),
            "start": int(space.start),
            "dtype": np.dtype(space.dtype).name,
        }
    if isinstance(space, spaces.MultiDiscrete):
        _require_few(space.nvec.size)
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": np.dtype(space.dtype).name,
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise UnsupportedSpace(
        f"space {space} can't be stored; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can"
    )


def space_from_json(description: Mapping[str, Any]) -> gym.Space[Any]:
    """Returns the space that `space_to_json` described.

    Raises:
        UnsupportedSpace: The description is of an unknown kind, or describes no valid space.
    """
    try:
        json.dumps(description)  # refuses tensors in place of lists, whose every number would become an object
        with np.errstate(all="ignore"):
            space = _make(description)
            described = space_to_json(space)
    except UnsupportedSpace:
        raise
    except Exception as error:  # Gymnasium and NumPy raise many types
        raise UnsupportedSpace(
            f"a stored space can't be made ({type(error).__name__}: {one_line(error, ascii)}); the file is damaged"
        ) from error
    if described != description:
        raise UnsupportedSpace(
            f"a stored space has another description than the space made from it: {one_line(description, ascii)}"
        )
    return space


def _make(description: Mapping[str, Any]) -> gym.Space[Any]:
    kind = description.get("type")
    if kind == "Box":
        shape = tuple(description["shape"])
        _require_small(shape, description["dtype"])
        dtype = np.dtype(description["dtype"])
        low, high = (_bound_from_json(description[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        _require_small((), description["dtype"])
        return spaces.Discrete(description["n"], start=description["start"], dtype=np.dtype(description["dtype"]).type)
    if kind == "MultiDiscrete":
        _require_small((), description["dtype"])
        dtype = np.dtype(description["dtype"])
        nvec, start = (np.array(description[side], dtype) for side in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if kind == "MultiBinary":
        n = description["n"]
        _require_small(tuple(n) if isinstance(n, list) else (n,), "int8")
        return spaces.MultiBinary(n)
    if kind == "Dict":
        return spaces.Dict([(key, _make(part)) for key, part in description["spaces"]], sort_keys=False)
    if kind == "Tuple":
        return spaces.Tuple([_make(part) for part in description["spaces"]])
    raise UnsupportedSpace(
        f"a stored space is of the unknown kind {one_line(kind, ascii)}; it is foreign or of a newer version"
    )


def _bound_to_json(bound: NDArray[Any]) -> Any:
    values = np.where(np.isfinite(bound), bound, 0).astype(bound.dtype).ravel().tolist()
    named = [str(b) if not np.isfinite(b) else v for b, v in zip(bound.ravel(), values, strict=True)]
    # All pixels of an image have the same bound, which is stored once.
    if named and all(value == named[0] for value in named):
        return named[0]
    _require_few(len(named))
    return named


def _bound_from_json(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if isinstance(bound, list):
        return np.array([float(v) if isinstance(v, str) else v for v in bound], dtype).reshape(shape)
    return np.full(shape, float(bound) if isinstance(bound, str) else bound, dtype)


def _require_small(shape: tuple[Any, ...], dtype: Any) -> None:
    if dtype not in DTYPES:
        raise UnsupportedSpace(f"a space of numbers of the type {one_line(dtype, ascii)} can't be stored")
    if not all(isinstance(side, int) and side >= 0 for side in shape) or len(shape) > 32:
        raise UnsupportedSpace(f"a stored space has the shape {one_line(shape)}; the file is damaged or foreign")
    if (size := prod(shape) * np.dtype(dtype).itemsize) > MOST_BYTES:
        raise UnsupportedSpace(
            f"a space of the shape {one_line(shape)} can't be stored: its bounds have {one_line(size)} bytes, and at "
            f"most {MOST_BYTES:,} are expected"
        )


def _require_few(count: int) -> None:
    if count > MOST_NUMBERS:
        raise UnsupportedSpace(f"a space with {count:,} different bounds can't be stored; at most {MOST_NUMBERS:,} can")
