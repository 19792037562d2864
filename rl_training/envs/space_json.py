"""Spaces as JSON, so that a policy can be served where its environment is not installed; nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.leaves import UnsupportedSpace


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Returns a description of `space` of strings, numbers, lists and dicts that is strict JSON.

    Raises:
        UnsupportedSpace: `space`, or a part of it, is of another kind than `space_from_json` can build.
    """
    if isinstance(space, spaces.Box):
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
        UnsupportedSpace: The description is of no known kind.
    """
    kind = description.get("type")
    if kind == "Box":
        dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
        low, high = (_bound_from_json(description[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"], dtype=np.dtype(description["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(description["dtype"])
        nvec, start = (np.array(description[side], dtype) for side in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["n"])
    if kind == "Dict":
        return spaces.Dict([(key, space_from_json(part)) for key, part in description["spaces"]], sort_keys=False)
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in description["spaces"]])
    raise UnsupportedSpace(f"a stored space is of the unknown kind {kind!r}; the file is foreign or of a newer version")


def _bound_to_json(bound: NDArray[Any]) -> Any:
    values = np.where(np.isfinite(bound), bound, 0).astype(bound.dtype).ravel().tolist()
    named = [str(b) if not np.isfinite(b) else v for b, v in zip(bound.ravel(), values, strict=True)]
    # An image has one bound for all its pixels: one number says it.
    return named[0] if named and all(value == named[0] for value in named) else named


def _bound_from_json(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if isinstance(bound, list):
        return np.array([float(v) if isinstance(v, str) else v for v in bound], dtype).reshape(shape)
    return np.full(shape, float(bound) if isinstance(bound, str) else bound, dtype)
