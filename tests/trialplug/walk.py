"""A walk on a line, one step right or left, that ends at +5 with reward 1. The best return is 1.0, in five steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env[Any, Any]):
    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-30.0, 30.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.position = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += 1 if int(action) == 1 else -1
        arrived = self.position >= 5
        return self._observation(), float(arrived), arrived, False, {}

    def _observation(self) -> Any:
        return np.array([self.position], np.float32)
