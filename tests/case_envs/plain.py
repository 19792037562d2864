"""The control: every other environment differs from it in one thing."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Plain(gym.Env[Any, Any]):
    """No oddity: the control."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    length = 10
    terminates = True
    truncates = False

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.t = 0
        self.life_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        self.life_step += 1
        over = self.t >= self.length
        return self.observe(), self.reward(action), over and self.terminates, over and self.truncates, {}

    def observe(self) -> Any:
        return np.full(4, self.t / self.length, np.float32)

    def reward(self, action: Any) -> Any:
        return 1.0 if int(np.asarray(action).reshape(-1)[0]) == 1 else 0.0

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)
