"""Converts the random state of an environment to text and back, because a tensor can't hold 128-bit numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

WORDS = ("uint32", "uint64")
"""Dtypes of the arrays in the states of NumPy's bit generators."""

AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


def random_state(env: AnyEnv) -> dict[str, Any] | None:
    """Returns a copy of the state of the environment's `np_random`; None if the environment has no generator yet."""
    # Reading the property `np_random` would make a randomly seeded generator if none exists.
    generator = getattr(env.unwrapped, "_np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    return dict(generator.bit_generator.state)


def random_state_to_json(state: Mapping[str, Any] | None) -> str | None:
    """Returns a state from `random_state` as JSON; None for None."""
    return None if state is None else json.dumps(state, default=_encode_number)


def write_random_state(env: AnyEnv, text: str) -> None:
    """Sets the state of the environment's `np_random` from a text of `random_state_to_json`.

    The text may come from an untrusted checkpoint, so only a bit generator of NumPy is ever called, and no array is
    larger than the text.

    Raises:
        ValueError: The text doesn't name a bit generator of NumPy, or its arrays have another dtype than in NumPy's.
    """
    state = json.loads(text, object_hook=_decode_array)
    generator = getattr(env.unwrapped, "_np_random", None)
    kind = generator.bit_generator.state["bit_generator"] if isinstance(generator, np.random.Generator) else None
    if generator is not None and kind == state["bit_generator"]:
        # Set in place, because parts of the environment may share its generator.
        generator.bit_generator.state = state
        return
    make = getattr(np.random, state["bit_generator"], None)
    if not (isinstance(make, type) and issubclass(make, np.random.BitGenerator)):
        raise ValueError(f"{state['bit_generator']!r} is not a bit generator of NumPy")
    bits = make()
    bits.state = state
    env.unwrapped.np_random = np.random.Generator(bits)


def _encode_number(value: Any) -> Any:
    return {"array": value.tolist(), "dtype": value.dtype.name} if isinstance(value, np.ndarray) else int(value)


def _decode_array(value: dict[str, Any]) -> Any:
    if set(value) != {"array", "dtype"}:
        return value
    if value["dtype"] not in WORDS:
        raise ValueError(f"an array of a bit generator has the type {value['dtype']!r}, expected {' or '.join(WORDS)}")
    return np.array(value["array"], value["dtype"])
