"""Makes the native vector environment of an id, in a mode in which each step is N transitions if it offers one."""

from __future__ import annotations

import inspect
from copy import copy
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.native.masked_cartpole import MaskedCartPole
from rl_training.errors import EnvironmentRefused


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
