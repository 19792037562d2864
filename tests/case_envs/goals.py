"""Environments with goals, and with faults that hindsight can't work with."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from case_envs.plain import Plain


class Reach(Plain):
    """A point moves to a goal within eight steps; an episode ends at the goal. The reward is 0 there, and else -1."""

    length = 8
    ends_at_goal = True

    def __init__(self, size: float = 0.3) -> None:
        super().__init__()
        self.size = size
        part = spaces.Box(-10.0, 10.0, (2,), np.float64)
        names = ("achieved_goal", "desired_goal", "observation")
        self.observation_space = spaces.Dict(dict.fromkeys(names, part))
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.place, self.goal = np.zeros(2), np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super(Plain, self).reset(seed=seed)
        self.t, self.place, self.goal = 0, np.zeros(2), self.np_random.uniform(-1.0, 1.0, 2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        self.place = self.place + 0.3 * np.asarray(action, np.float64)
        at_goal = bool(self.is_at_goal(self.place, self.goal))
        terminated = at_goal and self.ends_at_goal
        return self.observe(), self.reward(action), terminated, self.t >= self.length, {"is_success": at_goal}

    def observe(self) -> Any:
        return {"achieved_goal": self.place.copy(), "desired_goal": self.goal.copy(), "observation": self.place.copy()}

    def reward(self, action: Any) -> Any:
        return float(self.compute_reward(self.place, self.goal, {}))

    def is_at_goal(self, achieved: Any, desired: Any) -> Any:
        return np.linalg.norm(achieved - desired, axis=-1) < self.size

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return self.is_at_goal(achieved, desired) - 1.0

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return self.is_at_goal(achieved, desired) & self.ends_at_goal


class ReachShared(Reach):
    """Returns the same arrays each time."""

    def observe(self) -> Any:
        if not hasattr(self, "shared"):
            self.shared = super().observe()
        for name, array in super().observe().items():
            self.shared[name][:] = array
        return self.shared


class ReachChoice(Reach):
    """Four actions, one for each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(4)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step(np.array([(1, 0), (-1, 0), (0, 1), (0, -1)][int(action)]))


class ReachDense(Reach):
    """The reward is the distance, and no goal ends an episode."""

    ends_at_goal = False

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved - desired, axis=-1)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return False


class ReachCostly(Reach):
    """Actions cost something, which no goal tells."""

    def reward(self, action: Any) -> Any:
        return super().reward(action) - 0.1 * float(np.square(action).sum())


class ReachOneByOne(Reach):
    """A norm over the whole batch."""

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return bool(np.linalg.norm(achieved - desired) < self.size)


class ReachStaying(Reach):
    """Its steps end no episode at the goal, although `compute_terminated` says so."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


class ReachFlat(Reach):
    """One reward for all."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.mean(self.is_at_goal(achieved, desired) - 1.0)


class ReachRaises(Reach):
    """Needs infos, which are empty when goals are replaced."""

    def reward(self, action: Any) -> Any:
        return -1.0

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.array([each["effort"] for each in info])


class ReachNan(Reach):
    """A reward that is not finite."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.full(np.shape(achieved)[:-1], np.nan)

    def reward(self, action: Any) -> Any:
        return -1.0


class ReachWithoutMethods(Plain):
    """Goals, but no method that computes rewards of them."""

    def __init__(self) -> None:
        super().__init__()
        part = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"achieved_goal": part, "desired_goal": part})

    def observe(self) -> Any:
        return {name: np.zeros(2, np.float32) for name in ("achieved_goal", "desired_goal")}
