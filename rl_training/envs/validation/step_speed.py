"""Measures how many steps per second an environment makes by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym

from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.mask_guard import sample_action

TIMED_SECONDS = 0.02
"""Least time spent in steps for a result. Training waits for it; a shorter time would mostly measure the machine's
other work."""
_MOST_SECONDS = 1.0
"""Limit for the measurement, including resets."""


class Stopwatch:
    """Measures the total time that an environment spends in its `step`."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0

    def step(self, env: gym.Env[Any, Any], action: Any) -> Any:
        """Steps the environment, measures the time, and returns the result of the step."""
        self.steps += 1
        start = time.perf_counter()
        result = env.step(action)
        self.seconds += time.perf_counter() - start
        return result

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second; None if less than `TIMED_SECONDS` were measured."""
        return self.steps / self.seconds if self.seconds >= TIMED_SECONDS else None


def time_steps(
    env: gym.Env[Any, Any], watch: CallWatch, seed: int, stopwatch: Stopwatch, options: Mapping[str, Any]
) -> None:
    """Plays further episodes with random actions, without any checks between the steps.

    Raises:
        CallBlocked: A call did not return.
    """
    action_space = deepcopy(env.action_space)
    action_space.seed(seed)
    until = time.monotonic() + _MOST_SECONDS
    over = True
    while stopwatch.seconds < TIMED_SECONDS and time.monotonic() < until:
        if over:
            watch.call("a reset for timing", partial(env.reset, options=deepcopy(dict(options)) or None))
        action = sample_action(env, action_space)
        _, _, terminated, truncated, _ = watch.call("a step for timing", stopwatch.step, env, action)
        over = bool(terminated) or bool(truncated)
