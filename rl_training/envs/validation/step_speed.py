"""How many steps a second an environment makes by itself."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import gymnasium as gym

from rl_training.envs.contract.call_watch import CallWatch

TIMED_SECONDS = 0.2
"""Stepping that is timed, at the least; a shorter time says more of the machine's other work than of the steps."""
_MOST_SECONDS = 1.0
"""Bound on timing, resets included."""


class Stopwatch:
    """Adds up the time that an environment spends in its `step`."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0

    def step(self, env: gym.Env[Any, Any], action: Any) -> Any:
        """Returns what the environment's step returns."""
        self.steps += 1
        start = time.perf_counter()
        result = env.step(action)
        self.seconds += time.perf_counter() - start
        return result

    @property
    def steps_per_second(self) -> float | None:
        """None where too little was timed."""
        return self.steps / self.seconds if self.seconds >= TIMED_SECONDS else None


def time_steps(env: gym.Env[Any, Any], watch: CallWatch, seed: int, stopwatch: Stopwatch) -> None:
    """Plays more episodes with random actions, and nothing between the steps but the drawing of an action.

    Args:
        env: The environment, between two episodes or in one.
        watch: Watches the calls.
        seed: Of the actions.
        stopwatch: What the steps are timed with.

    Raises:
        CallBlocked: A call did not return.
    """
    action_space = deepcopy(env.action_space)
    action_space.seed(seed)
    until = time.monotonic() + _MOST_SECONDS
    over = True
    while stopwatch.seconds < TIMED_SECONDS and time.monotonic() < until:
        if over:
            watch.call("a reset for timing", env.reset)
        action = action_space.sample()
        _, _, terminated, truncated, _ = watch.call("a step for timing", stopwatch.step, env, action)
        over = bool(terminated) or bool(truncated)
