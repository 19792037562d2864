"""Environments stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.envs.closing import close_quietly
from rl_training.envs.replay import EpisodeReplay
from rl_training.errors import EnvironmentRefused


class LocalVectorEnv(SyncVectorEnv[Any, Any]):
    """Gymnasium's `SyncVectorEnv`, autoreset DISABLED, for the environments of `make_env`.

    Args:
        env_id: The id in the settings, for messages.
        envs: The environments, which this takes over and closes.
        secrets: What they were given and no warning may show.

    Raises:
        EnvironmentRefused: They differ in their spaces.
    """

    def __init__(self, env_id: str, envs: Sequence[EpisodeReplay], secrets: Collection[str] = ()) -> None:
        self._env_id, self._secrets = env_id, secrets
        require_same_spaces(env_id, [(env.observation_space, env.action_space) for env in envs])
        super().__init__([partial(_as_is, env) for env in envs], autoreset_mode=AutoresetMode.DISABLED)
        self.life_steps = np.zeros(len(envs), np.int64)
        """Steps of each environment since the run began [N]."""

    def step(self, actions: Any) -> Any:
        """Steps every environment once."""
        self.life_steps += 1
        return super().step(actions)

    def call_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Calls the method `name` of each environment with an argument of its own."""
        return [env.get_wrapper_attr(name)(argument) for env, argument in zip(self.envs, arguments, strict=True)]

    def close_extras(self, **kwargs: Any) -> None:
        """Closes every environment, those after one that fails on closing too."""
        close_quietly(self._env_id, getattr(self, "envs", ()), self._secrets)

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        return super()._add_info(vector_infos, scalars(env_info), env_num) if env_info else vector_infos


def _as_is(env: EpisodeReplay) -> EpisodeReplay:
    return env


def scalars(info: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an info, and its nested dicts of numbers.

    What else an environment puts there can't always be batched: arrays whose shape varies stop Gymnasium's vector
    environments in mid-run.
    """
    kept: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, bool | int | float | np.number | np.bool_):
            kept[key] = value
        elif isinstance(value, dict):
            kept[key] = scalars(value)
    return kept


def require_same_spaces(env_id: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Checks the (observation space, action space) of each environment against the first one's.

    Raises:
        EnvironmentRefused: One differs.
    """
    for index, pair in enumerate(pairs):
        for name, first, other in zip(("observation_space", "action_space"), pairs[0], pair, strict=True):
            if other != first:
                raise EnvironmentRefused(
                    f"environment {env_id!r}: {name} is {first} at index 0 and {other} at index {index}; "
                    f"they must be equal"
                )
