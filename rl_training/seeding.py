"""One seed, and an independent random stream for each consumer of randomness.

Streams are children of one `numpy.random.SeedSequence`, so drawing more numbers from one stream (for example by
evaluating more often) never changes another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

STREAMS = ("init", "action", "replay", "permutation", "envs", "evaluation", "held_out", "update_noise")
"""The consumers, by spawn index. Append only: runs repeat only if each consumer keeps its index."""

ENV_SEED_BITS = 31
"""Seeds passed to `env.reset(seed=...)` are below 2**31, which every simulator accepts."""


def stream(seed: int, name: str) -> np.random.SeedSequence:
    """Returns the seed sequence of one consumer.

    Args:
        seed: The run's seed.
        name: One of `STREAMS`.

    Raises:
        ValueError: `name` is not in `STREAMS`.
    """
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name),))


def generator(seed: int, name: str) -> np.random.Generator:
    """Returns a new generator at the start of the stream `name`."""
    return np.random.Generator(np.random.PCG64(stream(seed, name)))


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Returns a reset seed for each training environment, all different."""
    return _reset_seeds(stream(seed, "envs"), num_envs)


def episode_seeds(seed: int, name: str, episodes: int) -> list[int]:
    """Returns the reset seeds of a fixed list of episodes.

    Args:
        seed: `evaluation.seed`, or a number derived from the decision id of a promotion.
        name: The stream: `evaluation` for periodic evaluations, `held_out` for the final one.
        episodes: The number of seeds.
    """
    return _reset_seeds(stream(seed, name), episodes)


def derived_seed(seed: int, identity: str) -> int:
    """Returns a seed below 2**32 that belongs to an identity, for example to one run of a schedule.

    Args:
        seed: The seed of the settings.
        identity: The same text gives the same seed; another text gives an independent one.
    """
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest())
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint32)[0])


def _reset_seeds(sequence: np.random.SeedSequence, count: int) -> list[int]:
    seeds: dict[int, None] = {}
    for child in sequence.spawn(2 * count + 8):
        seeds[int(child.generate_state(1, np.uint64)[0]) >> (64 - ENV_SEED_BITS)] = None
    return list(seeds)[:count]


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a generator's state as strings and small numbers, which a checkpoint can hold."""
    state = rng.bit_generator.state
    return {
        "bit_generator": state["bit_generator"],
        "state": hex(state["state"]["state"]),
        "inc": hex(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def restore_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """Returns a generator that continues from the state that `generator_state` returned."""
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": state["bit_generator"],
        "state": {"state": int(state["state"], 16), "inc": int(state["inc"], 16)},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
    return np.random.Generator(bits)
