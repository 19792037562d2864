"""The random state of an environment as text, and back: numbers of 128 bits have no place in a tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

WORDS = ("uint32", "uint64")
"""Types of the arrays that NumPy's bit generators have in their states."""

AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


def random_state(env: AnyEnv) -> dict[str, Any] | None:
    """Returns a copy of the state of the environment's `np_random`; None where it has drawn none yet."""
    # The property would make a generator, with a seed of chance, where there is none.
    generator = getattr(env.unwrapped, "_np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    return dict(generator.bit_generator.state)


def as_text(state: Mapping[str, Any] | None) -> str | None:
    """Returns what `random_state` returned as JSON."""
    return None if state is None else json.dumps(state, default=_array_as_list)


def write_random_state(env: AnyEnv, text: str) -> None:
    """Puts the environment's `np_random` into the state that a text of `as_text` tells.

    Raises:
        ValueError: The text names no bit generator of NumPy, or has arrays of other types than theirs. It may come from
            a stranger's checkpoint, so nothing else of that name is called, and no array is larger than the text.
    """
    state = json.loads(text, object_hook=_lists_as_arrays)
    generator = getattr(env.unwrapped, "_np_random", None)
    kind = generator.bit_generator.state["bit_generator"] if isinstance(generator, np.random.Generator) else None
    if generator is not None and kind == state["bit_generator"]:
        # In place: the environment may have handed its generator to its own parts.
        generator.bit_generator.state = state
        return
    make = getattr(np.random, state["bit_generator"], None)
    if not (isinstance(make, type) and issubclass(make, np.random.BitGenerator)):
        raise ValueError(f"{state['bit_generator']!r} is no bit generator of NumPy")
    bits = make()
    bits.state = state
    env.unwrapped.np_random = np.random.Generator(bits)


def _array_as_list(value: Any) -> Any:
    return {"array": value.tolist(), "dtype": value.dtype.name} if isinstance(value, np.ndarray) else int(value)


def _lists_as_arrays(value: dict[str, Any]) -> Any:
    if set(value) != {"array", "dtype"}:
        return value
    if value["dtype"] not in WORDS:
        raise ValueError(f"an array of a bit generator has the type {value['dtype']!r}, expected {' or '.join(WORDS)}")
    return np.array(value["array"], value["dtype"])
