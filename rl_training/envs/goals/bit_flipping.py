"""The task of flipping bits until they equal a goal, which random actions almost never solve."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.goals.goal_columns import ACHIEVED, DESIRED

Observation = dict[str, NDArray[np.int8]]


class BitFlipping(gym.Env[Observation, np.int64]):
    """Each action flips one bit. The reward is -1 until the bits equal the goal, which ends the episode, and then 0.

    Bits and goal are drawn uniformly. An episode is cut after as many steps as there are bits, which is enough to flip
    each of them once.

    Source: Andrychowicz et al. 2017, "Hindsight Experience Replay", section 3.1.

    Args:
        bits: Number of bits.
    """

    def __init__(self, bits: int = 15) -> None:
        self.bits = bits
        self.action_space = spaces.Discrete(bits)
        names = ("observation", ACHIEVED, DESIRED)
        self.observation_space: gym.Space[Any] = spaces.Dict([(name, spaces.MultiBinary(bits)) for name in names])
        self._bits, self._goal = (np.zeros(bits, np.int8) for _ in range(2))
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws bits and a goal."""
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(2, size=(2, self.bits), dtype=np.int8)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Flips a bit; `is_success` of the info tells whether the bits equal the goal."""
        self._bits[action] ^= 1
        self._steps += 1
        is_success = bool(self.compute_terminated(self._bits, self._goal, {}))
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        return self._observe(), reward, is_success, self._steps >= self.bits, {"is_success": is_success}

    def compute_reward(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any) -> NDArray[Any]:
        """Returns 0 where goals [..., bits] are equal, and -1 elsewhere."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any
    ) -> NDArray[np.bool_]:
        """Returns where goals [..., bits] are equal."""
        equal: NDArray[np.bool_] = (achieved_goal == desired_goal).all(axis=-1)
        return equal

    def _observe(self) -> Observation:
        return {"observation": self._bits.copy(), ACHIEVED: self._bits.copy(), DESIRED: self._goal.copy()}


gym.register("BitFlipping-v0", entry_point=f"{__name__}:BitFlipping")
