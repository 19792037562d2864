"""Action masks: which actions are allowed, as environments give it and as encoded observations hold it.

Shapes: N environments, O one encoded observation without its mask, M actions: n of a `Discrete` space, or the choices
of all parts of a `MultiDiscrete` one, one part after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.space_leaves import UnsupportedSpace, list_mask_leaves
from rl_training.envs.spaces.action_codec import ActionCodec

FEATURES, MASK = "features", "mask"
"""The fields of an encoded observation with a mask: what the networks see, [*O], and what is allowed, bool [M]."""


def take_features(encoded: NDArray[Any]) -> NDArray[Any]:
    """Returns what the networks see of encoded observations, [N, *O]: a copy without their masks if they have any."""
    return encoded[FEATURES].copy() if _has_masks(encoded) else encoded


def take_mask(encoded: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Returns the masks of encoded observations, bool [N, M], or None if they have none."""
    return np.ascontiguousarray(encoded[MASK]) if _has_masks(encoded) else None


def draw_allowed(allowed_NM: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws one of the allowed actions of each row with equal probabilities, int64 [N]; 0 if a row allows none.

    One number is drawn for each row, whatever is allowed.
    """
    ranks_N = (rng.random(len(allowed_NM)) * allowed_NM.sum(1)).astype(np.int64)  # rounds down, and so below the sum
    actions: NDArray[np.int64] = (allowed_NM.cumsum(1) > ranks_N[:, None]).argmax(1)
    return actions


def split_parts(mask_M: NDArray[Any], counts: Sequence[int]) -> list[NDArray[Any]]:
    """Returns the part of a mask for each part of an action; a `Discrete` action has one part."""
    return np.split(mask_M, np.cumsum(counts)[:-1])


def find_mask_faults(observation_space: gym.Space[Any], action_space: gym.Space[Any], key: str) -> list[str]:
    """Returns the reasons why observations have no mask of such actions, one sentence each.

    Args:
        observation_space: The space of observations with their masks.
        action_space: The space of actions.
        key: The key of the masks.
    """
    if not isinstance(action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return [f"action_mask: actions are {action_space}; expected Discrete or MultiDiscrete, or no mask"]
    try:
        shapes = [leaf.space.shape for leaf in list_mask_leaves(observation_space, key)]
    except UnsupportedSpace as unsupported:
        return [str(unsupported)]
    counts = ActionCodec(action_space).nvec
    if shapes in ([(sum(counts),)], [(n,) for n in counts]):
        return []
    got = ", ".join(map(str, shapes))
    return [f"action_mask: observation {key} has shape {got}; expected {describe_mask_form(counts)}"]


def describe_mask_form(counts: Sequence[int]) -> str:
    """Returns the shape of a mask, given the number of choices of each part of an action."""
    form = f"({sum(counts)},)"
    return form if len(counts) == 1 else f"{form}, or a tuple of {', '.join(f'({n},)' for n in counts)}"


def _has_masks(encoded: NDArray[Any]) -> bool:
    return encoded.dtype.names is not None and MASK in encoded.dtype.names
