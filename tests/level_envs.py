"""An environment with levels for curricula, and callbacks that change it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from case_envs.plain import Plain

from rl_training.runtime.callbacks import Callback, TrainerState


class Levels(Plain):
    """Four steps; level, start and a random number are in the observation, and every third episode fails above level 1.

    `reset` takes the start from its options. The reward is 1 for action 1, less a tenth of the level.
    """

    length = 4

    def __init__(self, render_mode: str | None = None, tells: bool = True) -> None:
        super().__init__(render_mode)
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)
        self.level: Any = 0
        self.start, self.episode, self.tells = 0.0, 0, tells

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.start, self.episode = (options or {}).get("start", 0.0), self.episode + 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self.tells and self.t == self.length:
            info = {"is_success": self.level < 1 or self.np_random.random() < 0.6}
        return (*rest, info)

    def observe(self) -> Any:
        return np.array([self.t, self.level, self.start, self.np_random.random()], np.float32)

    def reward(self, action: Any) -> Any:
        return float(super().reward(action)) - 0.1 * self.level

    def raise_level(self, by: int) -> int:
        self.level += by
        return int(self.level)


gym.register("Levels-v0", f"{__name__}:Levels")


class Watches(Callback):
    """Notes the level and start of each environment after each step, and the infos."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[Any, ...], tuple[Any, ...]]] = []

    def on_step(self, state: TrainerState) -> None:
        assert state.envs is not None
        self.seen.append((state.num_timesteps, state.envs.get_attr("level"), state.envs.get_attr("start")))


class RaisesLevel(Callback):
    """Makes the task harder at every second update; by an attribute, whose changes are part of the replay."""

    def __init__(self) -> None:
        self.updates = 0

    def on_update_end(self, state: TrainerState) -> None:
        self.updates += 1
        if self.updates % 2 == 0:
            assert state.envs is not None
            state.envs.set_attr("level", self.updates // 2 % 5)
            state.envs.set_reset_options({"start": self.updates / 10})

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


class CallsMethod(Callback):
    """Raises the level by a method of the environment, which no resume repeats."""

    def on_update_end(self, state: TrainerState) -> None:
        if state.num_timesteps == 32:
            assert state.envs is not None
            assert state.envs.call("raise_level", 2) == (2, 2)
