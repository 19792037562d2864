"""A group of environments: consecutive indices of a vector environment, stepped one after the other in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.vector.step_rows import StepRows


class EnvGroup:
    """Steps, resets and closes the environments of one process.

    Args:
        config: The settings.
    """

    rows: StepRows
    """Arrays that the results of a step or reset are written to; set before the first reset."""

    def __init__(self, config: TrainConfig) -> None:
        self._env_id, self._secrets = config.env_id, find_secrets(config)
        self.numbers = EpisodeNumbers(config)
        self._envs: dict[int, EpisodeReplay] = {}

    def make(self, indices: Iterable[int], make_env: Callable[[int], EpisodeReplay]) -> None:
        """Makes the environments of these indices within the run; after an error, `close` closes those made."""
        for index in indices:
            self._envs[index] = make_env(index)

    @property
    def spaces(self) -> list[tuple[Any, Any]]:
        """The (observation space, action space) of each environment."""
        return [(env.observation_space, env.action_space) for env in self._envs.values()]

    def step(self, actions: Any) -> None:
        """Steps each environment with its own row of `actions` [n, *A], which the environment may keep."""
        put, rows = self.rows.put, self.rows
        reward, terminated, truncated = rows.reward, rows.terminated, rows.truncated
        for (i, env), action in zip(self._envs.items(), actions, strict=True):
            observation, reward[i], over, cut, info = env.step(action)
            terminated[i], truncated[i] = over, cut
            put(i, observation)
            if over or cut:
                self.numbers.write(rows.numbers[i], info, env.raw_return)

    def begin_episodes(self) -> None:
        """Resets the environments marked in `rows.ended`, with the empty options that a reset by mask leaves."""
        for i, env in self._envs.items():
            if self.rows.ended[i]:
                self.rows.put(i, env.reset(options={})[0])

    def reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Resets one environment."""
        self.rows.put(index, self._envs[index].reset(seed=seed, options=options)[0])

    def describe_refused(self, _: int, name: str) -> str:
        """Describes the newest value that is no number of an episode; see `EpisodeNumbers`."""
        return self.numbers.refused[name]

    def restore(self, index: int, snapshot: Mapping[str, Any]) -> bool:
        """Plays the episode of a snapshot again; see `EpisodeReplay.restore`."""
        env = self._envs[index]
        exact = env.restore(snapshot)
        self.rows.put(index, env.last_observation)
        return exact

    def call(self, index: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method of one environment, or reads an attribute."""
        found = self._envs[index].get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def set_attr(self, index: int, name: str, value: Any) -> None:
        """Sets an attribute of one environment."""
        self._envs[index].set_wrapper_attr(name, value)

    def close(self) -> None:
        """Closes every environment, even if closing another one failed."""
        close_quietly(self._env_id, self._envs.values(), self._secrets)
