"""Checks observations against their space, and words each way in which they may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.contract.step_contract import (
    FEATURES_NAMED,
    Breach,
    Severity,
    describe,
    not_finite,
    raise_if_broken,
)
from rl_training.envs.space_leaves import Leaf, has_same_keys, join_path, list_leaves


def cast_to_space(space: gym.Space[Any], observation: Any) -> Any:
    """Returns a copy of an observation in the declared shapes and dtypes.

    Raises:
        ContractBroken: The observation does not fit the space and can't be cast without changing its meaning.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _cast_leaf(Leaf((), space), observation)
    raise_if_broken(_check_structure(space, observation, ()))
    return _cast_nested(space, observation, ())


def check_observation(space: gym.Space[Any], observation: Any) -> list[Breach]:
    """Returns every way in which an observation differs from its space, naming the first of many similar numbers."""
    breaches = list(_check_structure(space, observation, ()))
    if breaches:
        return breaches
    return [breach for leaf in list_leaves(space) for breach in _check_leaf(leaf, leaf.pick(observation))]


def observation_is_array(part: Any) -> bool:
    """Returns whether a part of an observation is an array of numbers, or can be converted to one."""
    try:
        return np.asarray(part).dtype.kind in "biuf"
    except ValueError:  # lists of unequal length
        return False


def _cast_nested(space: gym.Space[Any], observation: Any, path: tuple[str | int, ...]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _cast_nested(part, observation[key], (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_cast_nested(part, observation[i], (*path, i)) for i, part in enumerate(space.spaces))
    return _cast_leaf(Leaf(path, space), observation)


def _check_structure(space: gym.Space[Any], observation: Any, path: tuple[str | int, ...]) -> Iterator[Breach]:
    name = _describe_path(path)
    if isinstance(space, spaces.Dict):
        if not has_same_keys(space, observation):
            keys = sorted(map(str, observation)) if isinstance(observation, Mapping) else None
            got = describe(observation) if keys is None else f"the keys {keys}"
            message = f"{name} has {got}; the space declares the keys {sorted(space.spaces)}"
            yield Breach("fatal", "structure", message, subject=name)
            return
        for key, part in space.spaces.items():
            yield from _check_structure(part, observation[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            got = f"{len(observation)} parts" if isinstance(observation, tuple | list) else describe(observation)
            message = f"{name} has {got}; the space declares a tuple of {len(space.spaces)}"
            yield Breach("fatal", "structure", message, subject=name)
            return
        for i, part in enumerate(space.spaces):
            yield from _check_structure(part, observation[i], (*path, i))


def _cast_leaf(leaf: Leaf, observation: Any) -> Any:
    if not isinstance(leaf.space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return observation
    breaches = [b for b in _check_leaf(leaf, observation) if b.code in ("shape", "dtype", "outside")]
    raise_if_broken(breaches)
    return np.array(observation, leaf.space.dtype)


def _check_leaf(leaf: Leaf, observation: Any) -> Iterator[Breach]:
    space, name = leaf.space, _describe_path(leaf.path)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    dtype = np.dtype(space.dtype)
    if not observation_is_array(observation):
        message = f"{name} is {describe(observation)}; the space declares {dtype} numbers"
        yield Breach("fatal", "dtype", message, subject=name)
        return
    array = np.asarray(observation)
    if array.shape != space.shape:
        message = f"{name} has shape {array.shape}; the space declares {space.shape}"
        yield Breach("fatal", "shape", message, subject=name)
        return
    if not isinstance(observation, np.ndarray | np.generic | int | float) or array.dtype != dtype:
        yield from _check_dtype(name, observation, array, dtype)
    yield from _check_values(leaf, array)


def _check_dtype(name: str, observation: Any, array: NDArray[Any], dtype: np.dtype[Any]) -> Iterator[Breach]:
    if isinstance(observation, int) and dtype.kind in "iu":
        return
    fits = np.can_cast(array.dtype, dtype, "same_kind") or bool((array.astype(dtype) == array).all())
    advice = "it is cast" if fits else "a cast would change its values"
    message = f"{name} is {describe(observation)}; the space declares {dtype} ({advice})"
    yield Breach("warning" if fits else "fatal", "dtype", message, subject=name)


def _check_values(leaf: Leaf, array: NDArray[Any]) -> Iterator[Breach]:
    space = leaf.space
    finite = np.isfinite(array)
    for index in _locate(~finite):
        yield not_finite(leaf.feature(index), float(array[index]))
    low, high = _find_bounds(space)
    for index in _locate(finite & ((array < low) | (array > high))):
        least, most = (np.broadcast_to(bound, array.shape)[index] for bound in (low, high))
        feature, value = leaf.feature(index), str(array[index])
        severity: Severity = "warning" if isinstance(space, spaces.Box) else "fatal"
        message = f"observation feature {feature} is {value}; the space declares {least} to {most}"
        yield Breach(severity, "outside", message, feature, value)


def _find_bounds(space: gym.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _locate(mask: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Returns where a mask is true, up to one index more than are named, so that the caller knows of others."""
    if not mask.any():
        return []
    return [tuple(int(i) for i in index) for index in np.argwhere(mask)[: FEATURES_NAMED + 1]]


def _describe_path(path: tuple[str | int, ...]) -> str:
    return " ".join(("observation", join_path(path))).strip()
