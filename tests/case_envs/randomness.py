"""Environments that draw random numbers, correctly or not."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np

from case_envs.plain import Plain


class SeedEcho(Plain):
    """Feature 0 is drawn at each reset and shows which random state was there."""

    mark = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.mark = float(np.float32(self.np_random.uniform(-1, 1)))
        return self.observe(), {"mark": self.mark}

    def observe(self) -> Any:
        observation = super().observe()
        observation[0] = self.mark
        return observation


class NotDeterministic(Plain):
    """Feature 3 is noise that no seed controls."""

    def observe(self) -> Any:
        observation = super().observe()
        observation[3] = np.random.default_rng().uniform(-1, 1)
        return observation


class GlobalNumbers(Plain):
    """Feature 3 is drawn from NumPy's global generator, which no environment's seed controls."""

    def observe(self) -> Any:
        observation = super().observe()
        observation[3] = np.random.uniform(-1, 1)
        return observation


class GlobalChance(Plain):
    """Draws from the global generator of `random`, for an event that is too rare to be seen."""

    def observe(self) -> Any:
        return super().observe() + np.float32(random.random() > 1 - 1e-12)


class RemembersEpisodes(Plain):
    """Feature 3 tells how many episodes this instance has begun: state that outlives an episode."""

    episodes = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(**kwargs)

    def observe(self) -> Any:
        observation = super().observe()
        observation[3] = 1 / (1 + self.episodes)
        return observation


class NoRandomNumbers(Plain):
    """An environment whose reset seeds nothing, so that it has no `np_random`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self.observe(), {}


class GlobalCount(Plain):
    """Feature 3 tells how often any instance of this process was stepped."""

    steps = 0

    def step(self, action: Any) -> Any:
        GlobalCount.steps += 1
        return super().step(action)

    def observe(self) -> Any:
        observation = super().observe()
        observation[3] = 1 / (1 + GlobalCount.steps) if self.t else 0.0
        return observation


class Coin(Plain):
    """One step; reward 1 with chance 0.5 whatever the action."""

    length = 1

    def reward(self, action: Any) -> Any:
        return float(self.np_random.random() < 0.5)


class Jackpot(Plain):
    """One step; 100 with chance 0.02, else 0: true mean 2.0."""

    length = 1

    def reward(self, action: Any) -> Any:
        return 100.0 if self.np_random.random() < 0.02 else 0.0


class ShortOrLong(Plain):
    """A coin at reset: one step with return 0, or fifty with return 50. True mean 25.0."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.length = 50 if self.np_random.random() < 0.5 else 1
        return self.observe(), {}

    def reward(self, action: Any) -> Any:
        return 1.0 if self.length == 50 else 0.0
