"""Makes the native vector environment of an id, in a mode in which each step is N transitions if it offers one."""

from __future__ import annotations

import inspect
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rl_training.errors import EnvironmentRefused


class MaskedCartPole(CartPoleVectorEnv):
    """Gymnasium's native CartPole with resets by mask.

    Gymnasium's mode is NEXT_STEP; rows that were reset by mask are no longer marked as done, so it resets none.
    """

    metadata = {**CartPoleVectorEnv.metadata, "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Resets all rows, or those where `options["reset_mask"]` (bool [N]) is true."""
        if options is None or "reset_mask" not in options:
            return super().reset(seed=seed, options=options)
        mask = options["reset_mask"]
        self.low, self.high = maybe_parse_reset_bounds(options, -0.05, 0.05)
        assert self.state is not None
        self.state[:, mask] = self.np_random.uniform(self.low, self.high, (4, np.count_nonzero(mask)))
        self.steps[mask] = 0
        self.prev_done[mask] = False
        return self.state.T.astype(np.float32), {}


def make_native(spec: EnvSpec, num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Makes the native vector environment of an id, in a mode in which each step is N transitions if it offers one.

    Raises:
        EnvironmentRefused: No native vector environment is registered for the id.
    """
    if spec.vector_entry_point is None:
        raise EnvironmentRefused(
            f"environment {spec.id!r}: no native vector environment (vector_entry_point) is registered for it; set "
            f"vectorization to sync, async or split"
        )
    entry_point = spec.vector_entry_point
    creator: Any = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if creator is CartPoleVectorEnv:
        spec = copy(spec)
        spec.vector_entry_point = MaskedCartPole  # type: ignore[assignment]
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP} if _has_parameter(creator, "autoreset_mode") else {}
    return gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **{**mode, **kwargs})


def _has_parameter(creator: Any, name: str) -> bool:
    return name in inspect.signature(creator).parameters
