"""A custom environment as a plug-in module, which registers `Thermostat-v0` on import.

A room loses heat to the outside, and the agent switches a heater on or off to keep the room at 20 degrees. The id of
the environment, with the module that registers it, is `thermostat:Thermostat-v0`. The module must be importable, for
example through PYTHONPATH:

    PYTHONPATH=examples rl-training validate-env thermostat:Thermostat-v0
    PYTHONPATH=examples rl-training train --config examples/thermostat.yaml
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

TARGET = 20.0
LOSS = 0.1
"""Fraction of the difference from the outside temperature that the room loses in a step."""
HEATER = 2.5
"""Degrees by which the heater warms the room in a step."""


class Thermostat(gym.Env[npt.NDArray[np.float32], int]):
    """Observes how far room and outside are from the target; the reward is minus the room's distance from it."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-60.0, 60.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Starts with the room at the outside temperature, between 0 and 10 degrees."""
        super().reset(seed=seed)
        self.outside = self.np_random.uniform(0.0, 10.0)
        self.room = self.outside
        return self._observation(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Heats if the action is 1. The episode never terminates; the registered time limit truncates it."""
        draught = self.np_random.normal(0.0, 0.05)
        self.room += LOSS * (self.outside - self.room) + HEATER * int(action) + draught
        return self._observation(), -abs(self.room - TARGET), False, False, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        return np.array([self.room - TARGET, self.outside - TARGET], np.float32)


gym.register("Thermostat-v0", entry_point=Thermostat, max_episode_steps=60)
