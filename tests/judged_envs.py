"""Tiny environments with more to say than a return: successes and numbers in infos, attributes, options, shaping.

Each is registered on import: `judged_envs:Told-v0`. Each also has a native version of the same rules.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

LENGTH = 4


def last_info(ones: int, instead: dict[str, Any] | None) -> dict[str, Any]:
    """The info of the last of `LENGTH` steps, of which `ones` had action 1; "nan" in `instead` is a NaN."""
    if instead is not None:
        return {key: float("nan") if value == "nan" else value for key, value in instead.items()}
    return {"is_success": ones >= 3, "collisions": LENGTH - ones, "note": "over", "ratio": np.float32(ones / LENGTH)}


class Told(gym.Env[Any, Any]):
    """Four steps with a reward of 1 for action 1; the last info tells the success (three of action 1) and the rest.

    An attribute, `drift`, and the option `start` move the observation, which is drawn from the random state as well.
    """

    def __init__(self, render_mode: str | None = None, last: dict[str, Any] | None = None) -> None:
        self.render_mode, self.last = render_mode, last
        self.observation_space: Any = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.drift, self.goal, self.label = 0.0, {"at": [1, 2]}, "first"
        self.tool: Any = object()
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = [*self.seen, options][-3:]
        self.t, self.ones = 0, 0
        self.x = float((options or {}).get("start", 0.0)) + self.np_random.random() + self.drift
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t, self.ones = self.t + 1, self.ones + int(action)
        self.x += self.drift * self.np_random.random() + sum(self.goal["at"])
        over = self.t == LENGTH
        info = last_info(self.ones, self.last) if over else {"t": self.t}
        return self.observe(), float(action), over, False, info

    def observe(self) -> Any:
        return np.array([self.x, self.t], np.float32)

    def steer(self, drift: float) -> float:
        """Changes the drift, and returns the former one."""
        self.drift, former = drift, self.drift
        return former


class NeedsStart(Told):
    """Can't begin an episode without being told where."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not options or "start" not in options:
            raise ValueError("options['start'] is missing")
        return super().reset(seed=seed, options=options)


class Shaped(gym.RewardWrapper[Any, Any]):
    """Adds a bonus to each reward."""

    def __init__(self, env: gym.Env[Any, Any], bonus: float = 10.0) -> None:
        super().__init__(env)
        self.bonus = bonus

    def reward(self, reward: Any) -> float:
        return float(reward) + self.bonus


class ToldRows(VectorEnv[Any, Any, Any]):
    """The native version of `Told`."""

    def __init__(self, num_envs: int, mode: str = "DISABLED", last: dict[str, Any] | None = None) -> None:
        self.num_envs, self.mode, self.last = num_envs, AutoresetMode[mode], last
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space: Any = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.drift, self.tool = 0.0, object()
        self.t, self.ones, self.x = np.zeros(num_envs, int), np.zeros(num_envs, int), np.zeros(num_envs)
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = [*self.seen, None if options is None else {k: v for k, v in options.items() if k != "reset_mask"}]
        mask = (options or {}).get("reset_mask")
        self.begin(np.ones(self.num_envs, bool) if mask is None else mask, float((options or {}).get("start", 0.0)))
        return self.observe(), {}

    def begin(self, mask: NDArray[np.bool_], start: float) -> None:
        self.t[mask], self.ones[mask] = 0, 0
        self.x[mask] = start + self.np_random.random(np.count_nonzero(mask)) + self.drift

    def step(self, actions: Any) -> Any:
        self.t, self.ones, self.x = self.t + 1, self.ones + actions, self.x + self.drift
        over, infos = self.t == LENGTH, {}
        for i in range(self.num_envs):
            info = last_info(int(self.ones[i]), self.last) if over[i] else {"t": int(self.t[i])}
            infos = self._add_info(infos, info, i)
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            final = np.full(self.num_envs, None)
            for i in np.flatnonzero(over):
                final[i] = self.observe()[i]
            infos = {"final_info": infos, "_final_info": over, "final_obs": final, "_final_obs": over}
            self.begin(over, 0.0)
        return self.observe(), np.asarray(actions, float), over, np.zeros(self.num_envs, bool), infos

    def observe(self) -> Any:
        return np.stack([self.x, self.t], axis=1).astype(np.float32)

    def steer(self, drift: float) -> float:
        self.drift, former = drift, self.drift
        return former


gym.register("Told-v0", f"{__name__}:Told", vector_entry_point=f"{__name__}:ToldRows")
gym.register("NeedsStart-v0", f"{__name__}:NeedsStart")
