"""Environments with odd action spaces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from case_envs.plain import Plain


class MultiDiscAct(Plain):
    """MultiDiscrete([3, 4]); reward 1 for [2, 0] alone; refuses another shape."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.MultiDiscrete([3, 4])

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action)
        if chosen.shape != (2,):
            raise ValueError(f"action shape {chosen.shape}, wanted (2,)")
        return 1.0 if chosen[0] == 2 and chosen[1] == 0 else 0.0


class MultiBinaryAct(Plain):
    """MultiBinary(3); reward is the share of ones."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.MultiBinary(3)

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action)
        if chosen.shape != (3,) or not np.isin(chosen, (0, 1)).all():
            raise ValueError(f"action {chosen}, wanted three of 0 or 1")
        return float(chosen.mean())


class OffsetAct(Plain):
    """Discrete(3, start=-1): legal are -1, 0 and 1; reward 1 for -1 alone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3, start=-1)

    def reward(self, action: Any) -> Any:
        if int(action) not in (-1, 0, 1):
            raise ValueError(f"illegal action {int(action)}")
        return 1.0 if int(action) == -1 else 0.0


class AsymAct(Plain):
    """Box from [0, -pi/4] to [5, pi/4], raises outside; reward -|a0 - 4| - |a1|, best return 0.0 with [4, 0]."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        low, high = np.array([0, -math.pi / 4], np.float32), np.array([5, math.pi / 4], np.float32)
        self.action_space = spaces.Box(low, high, dtype=np.float32)

    def reward(self, action: Any) -> Any:
        chosen = np.asarray(action, np.float64)
        if (chosen < self.action_space.low - 1e-5).any() or (chosen > self.action_space.high + 1e-5).any():
            raise ValueError(f"action {chosen} outside {self.action_space}")
        return float(-abs(chosen[0] - 4.0) - abs(chosen[1]))


class UnboundedAct(Plain):
    """Box without bounds; reward -|a|."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reward(self, action: Any) -> Any:
        return float(-np.abs(action).sum())


class PickyAct(Plain):
    """Declares Discrete(3) and raises on 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3)

    def reward(self, action: Any) -> Any:
        if int(action) == 2:
            raise ValueError("lever 2 is not connected")
        return 1.0


class NarrowAct(Plain):
    """Declares torques up to 2 and takes none above 1.9."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-1.5, 2.0, (1,), np.float32)

    def reward(self, action: Any) -> Any:
        if action[0] > 1.9:
            raise ValueError(f"torque {action[0]} is too much")
        return 0.0


class DictAct(Plain):
    """A dict of actions, for which no policy here has a head."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Dict({"turn": spaces.Discrete(2)})

    def reward(self, action: Any) -> Any:
        return float(action["turn"])


class MutatesAction(Plain):
    """Multiplies the action array that it is handed by ten, in place; reward -|a| after that."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 10.0
        return super().step(action)

    def reward(self, action: Any) -> Any:
        return float(-np.abs(action).sum())


class NestedAct(Plain):
    """A dict, or with `positions` a tuple, of a Discrete and a Box, left as they are; the reward is NaN."""

    def __init__(self, positions: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        gear, force = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Tuple([gear, force]) if positions else spaces.Dict({"gear": gear, "force": force})

    def reward(self, action: Any) -> Any:
        return math.nan


class MutatesNestedAction(NestedAct):
    """Sets one number of a nested action, in place."""

    def step(self, action: Any) -> Any:
        (action[1] if isinstance(action, tuple) else action["force"])[1] = 7.0
        return super().step(action)
