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


class Strict(Plain):
    """Raises if its mask forbids an action; three actions counted from 5, of which one or two are allowed.

    The allowed ones depend on the state; the one with the larger number earns 1. Best return 10. The mask of a terminal
    state allows none.
    """

    def __init__(self, in_observation: bool = False, dtype: str = "int8", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.in_observation, self.dtype = in_observation, dtype
        self.action_space = spaces.Discrete(3, start=5)
        if in_observation:
            self.observation_space = spaces.Dict({"x": self.observation_space, "legal": self.mask_space()})

    def mask_space(self) -> Any:
        return spaces.Box(0, 1, (3,), np.dtype(self.dtype).type)

    def mask(self) -> Any:
        """The mask of the state: 110, 011, 001, 100 and 010 in turn, from a random one on."""
        if self.t == 0:
            self.first = int(self.np_random.integers(5))
        now = [[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0]][(self.first + self.t) % 5]
        return np.array([0, 0, 0] if self.t >= self.length and self.terminates else now, self.dtype)

    def observe(self) -> Any:
        self.newest = self.mask()
        shown = np.array([self.t / self.length, (self.first + self.t) % 5 / 5, 0.0, 1.0], np.float32)
        return {"x": shown, "legal": self.newest} if self.in_observation else shown

    def infos(self) -> dict[str, Any]:
        return {} if self.in_observation else {"action_mask": self.newest}

    def allows(self, action: Any) -> bool:
        return bool(self.newest[int(action) - 5])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], self.infos()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.allows(action):
            raise ValueError(f"the action {action} is forbidden by {self.newest}")
        earned = self.earn(action)
        observation, _, terminated, truncated, _ = super().step(action)
        return observation, earned, terminated, truncated, self.infos()

    def earn(self, action: Any) -> float:
        return float(int(action) - 5 == np.flatnonzero(self.newest).max())


class StrictCut(Strict):
    """Is truncated in place of terminated, so its last mask allows actions."""

    terminates, truncates = False, True


class StrictParts(Strict):
    """Two choices in each action, of two and three options, with a mask of its own for each, in a tuple or flat."""

    def __init__(self, in_observation: bool = False, flat: bool = False, **kwargs: Any) -> None:
        self.flat = flat
        super().__init__(in_observation, **kwargs)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def mask_space(self) -> Any:
        parts = [spaces.MultiBinary(2), spaces.MultiBinary(3)]
        return spaces.MultiBinary(5) if self.flat else spaces.Tuple(parts)

    def mask(self) -> Any:
        second = super().mask()
        first = np.array([1, second[0]], np.int8) if second.any() else np.zeros(2, np.int8)
        return np.concatenate([first, second]) if self.flat else (first, second)

    def allows(self, action: Any) -> bool:
        first, second = (self.newest[:2], self.newest[2:]) if self.flat else self.newest
        return bool(first[action[0]] and second[action[1]])

    def earn(self, action: Any) -> float:
        second = self.newest[2:] if self.flat else self.newest[1]
        return float(action[1] == np.flatnonzero(second).max())


class BadMask(Strict):
    """From its fourth step on the mask of `kind` is wrong."""

    def __init__(self, kind: str = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def infos(self) -> dict[str, Any]:
        if self.life_step < 4:
            return super().infos()
        wrong = {"none": np.zeros(3, np.int8), "shape": np.ones(4, np.int8), "two": np.array([1, 2, 0]), "text": "yes"}
        return {"action_mask": wrong[self.kind]} if self.kind in wrong else {"mask": self.newest}


class Lenient(Strict):
    """Takes forbidden actions."""

    def allows(self, action: Any) -> bool:
        return True
