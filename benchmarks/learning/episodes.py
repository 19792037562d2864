"""Plays episodes of given seeds in any environment of Gymnasium; it needs only Gymnasium and numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

AT_ONCE = 10
"""Episodes that are played side by side, so that a network acts for several environments in one call."""


def play_episodes(
    env_id: str, seeds: Sequence[int], act: Callable[[np.ndarray], Sequence[Any]], at_once: int = AT_ONCE
) -> list[float]:
    """Plays one episode from each seed, and returns their undiscounted returns.

    Args:
        env_id: The id of the environment.
        seeds: The argument of `reset(seed=...)` for each episode.
        act: Returns an action for each of the observations in an array.
        at_once: The number of episodes that are played side by side.
    """
    envs, returns = [gym.make(env_id) for _ in range(min(at_once, len(seeds)))], []
    for start in range(0, len(seeds), at_once):
        returns += _play(envs, seeds[start : start + at_once], act)
    for env in envs:
        env.close()
    return returns


def _play(envs: Sequence[Any], seeds: Sequence[int], act: Callable[[np.ndarray], Sequence[Any]]) -> list[float]:
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=False)]
    returns, active = [0.0] * len(seeds), list(range(len(seeds)))
    while active:
        actions, remaining = act(np.stack([observations[i] for i in active])), []
        for i, action in zip(active, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                remaining.append(i)
        active = remaining
    return returns
