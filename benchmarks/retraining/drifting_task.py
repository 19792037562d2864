"""A cheap task that changes from week to week: holding a cart at its place in a wind that drifts.

A policy learns the wind of its week, so its value falls as the wind changes, and a newer policy is usually better, but
not always. An episode has 20 steps, so thousands of episodes take a second.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

STEPS = 20
PUSH = 0.3
"""Change of the place by an action of 1."""


class HoldInWind(gym.Env[np.ndarray, np.ndarray]):
    """The observation is the cart's place; the reward is minus its distance from 0 after the step.

    Args:
        wind: Push of the wind in each step, in units of the largest action.
        gusts: Standard deviation of the wind from step to step.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, wind: float = 0.0, gusts: float = 0.3) -> None:
        self._wind, self._gusts = wind, gusts
        self._place, self._steps = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Places the cart at random."""
        super().reset(seed=seed)
        self._place, self._steps = self.np_random.uniform(-1.0, 1.0), 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Moves the cart by the action and the wind."""
        wind = self._wind + self._gusts * self.np_random.standard_normal()
        self._place += PUSH * (float(action[0]) + wind)
        self._steps += 1
        return self._observe(), -abs(self._place), False, self._steps == STEPS, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._place], np.float32)


gym.register("HoldInWind-v0", entry_point=HoldInWind)
