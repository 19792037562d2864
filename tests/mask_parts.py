"""Helpers of the tests of action masks: encoded observations with masks."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.spaces.action_mask import FEATURES, MASK
from tests.ppo_parts import VECTOR

SPACE = spaces.Dict({"x": VECTOR, "legal": spaces.MultiBinary(3)})
LEGAL: dict[str, Any] = {"action_mask": "legal"}


def record(features: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Encoded observations with masks."""
    fields = [(FEATURES, features.dtype, features.shape[1:]), (MASK, np.bool_, allowed.shape[1:])]
    rows = np.zeros(len(features), np.dtype(fields))
    rows[FEATURES], rows[MASK] = features, allowed
    return rows


def draw_masks(rng: np.random.Generator, count: int, parts: tuple[int, ...] = (3,)) -> np.ndarray:
    """Masks that forbid about half of the choices and allow at least one of each part, bool [count, M]."""
    masks = []
    for n in parts:
        part = rng.random((count, n)) < 0.5
        part[np.arange(count), rng.integers(n, size=count)] = True
        masks.append(part)
    return np.concatenate(masks, axis=1)
