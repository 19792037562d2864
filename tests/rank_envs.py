"""An environment that fails in one process and not in another."""

import os
from typing import Any

import gymnasium as gym
import numpy as np


class Elsewhere(gym.Env[np.ndarray, int]):
    """Raises at the fifth step of an episode in every process but the one with the given id."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, pid: int) -> None:
        self._pid, self._steps = pid, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 5 and os.getpid() != self._pid:
            raise ValueError("the arm is stuck")
        return np.zeros(1, np.float32), 1.0, False, self._steps == 10, {}


gym.register("Elsewhere-v0", entry_point=Elsewhere)
