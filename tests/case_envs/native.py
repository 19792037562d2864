"""A native vector environment in which row i has episodes of i + 2 steps, and the equivalent single environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from case_envs.plain import Plain

NUMBERS = spaces.Box(0.0, np.inf, (2,), np.float32)
"""The step in the episode, and how many episodes the row had before."""


class Row(Plain):
    """One row of `Rows`, as evaluation plays it; any argument will do."""

    length = 2

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.observation_space = NUMBERS

    def observe(self) -> Any:
        return np.array([self.t, 0.0], np.float32)


class Rows(VectorEnv[Any, Any, Any]):
    """The action is the reward; the same arrays are handed out each time; row 0 is truncated, the others terminate.

    Args:
        num_envs: N.
        mode: Name of the autoreset mode.
        fault: What goes wrong in the fifth step: `raises`, `nan`, `shape`, `flags`, `result` or `no-final`.
    """

    def __init__(self, num_envs: int, mode: str = "SAME_STEP", fault: str = "") -> None:
        self.num_envs, self.fault = num_envs, fault
        self.mode = AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space, self.single_action_space = NUMBERS, spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rows = np.zeros((num_envs, 2), np.float32)
        self.reward = np.zeros(num_envs, np.float32)
        self.life = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        self.rows[mask] = 0.0 if options is None else self.begun(mask)
        return self.rows, {}

    def begun(self, mask: NDArray[np.bool_]) -> Any:
        return np.stack([np.zeros(mask.sum()), self.rows[mask, 1] + 1], axis=1)

    def step(self, actions: Any) -> Any:
        self.life += 1
        self.rows[:, 0] += 1
        self.reward[:] = actions
        over = self.rows[:, 0] == np.arange(self.num_envs) + 2
        first = np.arange(self.num_envs) == 0
        infos: dict[str, Any] = {}
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            infos["final_obs"] = np.full(self.num_envs, None)
            for i in np.flatnonzero(over):
                infos["final_obs"][i] = self.rows[i].copy()
            self.rows[over] = self.begun(over)
        result = (self.rows, self.reward, over & ~first, over & first, infos)
        return result if self.life < 5 else self.spoilt(result)

    def spoilt(self, result: tuple[Any, ...]) -> Any:
        observation, reward, terminated, truncated, infos = result
        if self.fault == "raises":
            raise RuntimeError("all simulators lost")
        if self.fault == "nan":
            self.rows[1, 0] = np.nan
        if self.fault == "no-final":
            infos.clear()
        return {
            "shape": (observation[:1], reward, terminated, truncated, infos),
            "flags": (observation, reward, terminated.astype(np.int64), truncated, infos),
            "result": result[:4],
        }.get(self.fault, result)


class KeptRows(Rows):
    """Returns its state, its own arrays included, and takes it back."""

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "life": self.life}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.life = state["rows"], state["life"]


class AskedMode(Rows):
    """Takes the mode as ALE's does."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        super().__init__(num_envs, autoreset_mode.name)


class MoreActions(Rows):
    """Another space than the single environment's."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = spaces.Discrete(5)


for name in ("Rows", "KeptRows", "AskedMode", "MoreActions"):
    if f"{name}-v0" not in gym.registry:
        gym.register(f"{name}-v0", "case_envs.native:Row", vector_entry_point=f"case_envs.native:{name}")
