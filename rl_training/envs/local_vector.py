"""Environments stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rl_training.envs.closing import close_quietly
from rl_training.envs.replay import EpisodeReplay
from rl_training.envs.vector import MaskedVectorEnv


class LocalVectorEnv(MaskedVectorEnv):
    """A vector environment of the environments of `make_env`.

    Args:
        env_id: The id in the settings, for messages.
        envs: The environments, which this takes over and closes.
        secrets: What they were given and no warning may show.

    Raises:
        EnvironmentRefused: They differ in their spaces.
    """

    def __init__(self, env_id: str, envs: Sequence[EpisodeReplay], secrets: Collection[str] = ()) -> None:
        super().__init__(env_id, [(env.observation_space, env.action_space) for env in envs])
        self.envs = envs
        self._env_id, self._secrets = env_id, secrets

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment, or reads an attribute."""
        found = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(one(*args, **kwargs) if callable(one) else one for one in found)

    def call_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Calls the method `name` of each environment with an argument of its own."""
        return [env.get_wrapper_attr(name)(argument) for env, argument in zip(self.envs, arguments, strict=True)]

    def close_extras(self, **kwargs: Any) -> None:
        """Closes every environment, those after one that fails on closing too."""
        close_quietly(self._env_id, self.envs, self._secrets)

    def _reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> list[tuple[Any, dict[str, Any]]]:
        return [self.envs[i].reset(seed=seeds[i], options=options) for i in rows]

    def _step_rows(self, actions: Any) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
        return [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
