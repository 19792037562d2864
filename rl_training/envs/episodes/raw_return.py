"""Sums an environment's own rewards beneath its wrappers, so that a shaped reward hides nothing."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym

from rl_training.envs.contract.step_contract import ContractBroken, reward_as_float


class RawReturn(gym.Wrapper[Any, Any, Any, Any]):
    """Sums the rewards of the running episode; belongs right above the time limit, beneath all wrappers."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.raw_return = 0.0
        """Sum of the running episode's rewards; NaN after a reward that is not one number, which a wrapper may fix."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and the sum."""
        self.raw_return = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Steps and adds the reward. A result that is not five values passes unchanged, for `ContractGuard` to name."""
        result = self.env.step(action)
        try:
            self.raw_return += reward_as_float(result[1])
        except (ContractBroken, TypeError, LookupError):
            self.raw_return = math.nan
        return result
