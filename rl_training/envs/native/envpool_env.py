"""Adapts EnvPool, whose compiled environments step in their own threads, to resets by mask."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rl_training.errors import EnvironmentRefused


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """EnvPool's version of an environment that is registered with Gymnasium.

    EnvPool's own autoreset mode is NEXT_STEP; a row that was reset by mask does not reset again at the next step.

    Args:
        spec: Gymnasium's specification; its name without the namespace is EnvPool's id.
        num_envs: Number of environments (N).
        **kwargs: EnvPool's settings of the environment; the time limit defaults to Gymnasium's.

    Raises:
        EnvironmentRefused: EnvPool has no environment of that name.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, num_envs: int, **kwargs: Any) -> None:
        envpool: Any = importlib.import_module("envpool")
        name = f"{spec.name}-v{spec.version}"
        if name not in envpool.list_all_envs():
            raise EnvironmentRefused(
                f"environment {spec.id!r}: EnvPool has none; set vectorization to sync, async or split"
            )
        if spec.max_episode_steps is not None:
            kwargs = {"max_episode_steps": spec.max_episode_steps, **kwargs}
        self._make = partial(envpool.make, name, env_type="gymnasium", num_envs=num_envs, **kwargs)
        self._pool = self._open_pool()
        self.num_envs = num_envs
        self.single_observation_space = self._pool.single_observation_space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._newest: NDArray[Any] = np.zeros(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Resets all rows, or those where `options["reset_mask"]` (bool [N]) is true."""
        if seed is not None:  # a pool takes its seed only when it is made
            self._pool.close()
            self._pool = self._open_pool(seed=seed)
        observation = self._pool.reset(options=options)[0]
        if options is None:
            self._newest = observation
        else:
            self._newest = self._newest.copy()
            self._newest[options["reset_mask"]] = observation
        return self._newest, {}

    def step(self, actions: NDArray[Any]) -> Any:
        """Steps all rows once; `terminated` is False in a row that the time limit truncates."""
        result = self._pool.step(actions)
        self._newest = result[0]
        return result

    def close_extras(self, **kwargs: Any) -> None:
        """Ends EnvPool's threads."""
        self._pool.close()

    def _open_pool(self, **seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EnvPool makes its spaces here, and warns of bounds rounded to float32
            pool = self._make(**seed)
            assert pool.observation_space is not None
        return pool
