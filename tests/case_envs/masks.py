"""Environments whose discrete parts are masked or large."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from case_envs.plain import Plain


class Masked(Plain):
    """Gives an action mask in its infos."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], {"action_mask": [1, 0]}


class MaskedView(Plain):
    """Gives an action mask as a part of its observation."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"x": self.observation_space, "action_mask": spaces.MultiBinary(2)})

    def observe(self) -> Any:
        return {"x": super().observe(), "action_mask": np.ones(2, np.int8)}


class Many(Plain):
    """A discrete observation with many choices."""

    def __init__(self, count: int = 5_000_000) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(count)

    def observe(self) -> Any:
        return self.t
