"""A group of environments: consecutive indices of a vector environment, stepped one after the other in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.envs.closing import close_quietly
from rl_training.envs.contract.contract_guard import find_secrets, format_fault, redact_cause
from rl_training.envs.contract.step_contract import describe_error
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.vector.step_rows import StepRows
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused, RLTrainingError
from rl_training.security.secrets import hide

_CHECKED = ("last_observation", "reset", "step")
"""What `call` never takes from beneath our own layers, which check and record it."""


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

    def step(self, actions: Any, infos: list[dict[str, Any]] | None = None) -> None:
        """Steps each environment with its own row of `actions` [n, *A], which the environment may keep.

        Args:
            actions: [n, *A] the actions of the environments in this process.
            infos: A list to which the info of each environment is added.
        """
        put, rows = self.rows.put, self.rows
        reward, terminated, truncated = rows.reward, rows.terminated, rows.truncated
        for (i, env), action in zip(self._envs.items(), actions, strict=True):
            observation, reward[i], over, cut, info = env.step(action)
            terminated[i], truncated[i] = over, cut
            put(i, observation)
            if infos is not None:
                infos.append(dict(info))  # the next reset may change the environment's own
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

    def replay(self, index: int, snapshot: Mapping[str, Any], actions: Sequence[Any]) -> bool:
        """Plays the episode of a snapshot again, and the actions after it; see `EpisodeReplay.replay`."""
        env = self._envs[index]
        exact = env.replay(snapshot, actions)
        self.rows.put(index, env.last_observation)
        return exact

    def snapshot(self, index: int) -> dict[str, Any]:
        """Returns the state that `restore` takes."""
        return self._envs[index].snapshot()

    def get_attr(self, index: int, name: str) -> Any:
        """Returns an attribute of one environment; of our own layers only if the environment has none of that name."""
        env = self._envs[index]
        with self._naming(index, name):
            own = name in _CHECKED or (hasattr(env, name) and not env.attributes.has(name))
            return getattr(env, name) if own else env.attributes.find(name)

    def set_attr(self, index: int, name: str, value: Any) -> bool:
        """Sets an attribute of one environment; returns whether a replay can set it again."""
        with self._naming(index, name):
            return self._envs[index].set_attribute(name, value)

    def call(self, index: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method of one environment, or reads an attribute."""
        found = self.get_attr(index, name)
        if not callable(found):
            return found
        with self._naming(index, name):
            return found(*args, **kwargs)

    def set_reset_options(self, index: int, options: Mapping[str, Any]) -> None:
        """Sets the options of every later reset of one environment."""
        self._envs[index].set_reset_options(options)

    @contextmanager
    def _naming(self, index: int, name: str) -> Iterator[None]:
        """Turns an error of the environment into an `EnvironmentFault` that names it and the attribute."""
        try:
            yield
        except RLTrainingError:
            raise
        except USER_CODE_ERRORS as error:
            what = hide(describe_error(name, error), self._secrets)
            steps = int(self._envs[index].get_wrapper_attr("life_steps"))
            fault = EnvironmentFault(format_fault(self._env_id, index, steps, what))
            raise fault from redact_cause(error, self._secrets)

    def close(self) -> None:
        """Closes every environment, even if closing another one failed."""
        close_quietly(self._env_id, self._envs.values(), self._secrets)


def divide_equally(num_envs: int, count: int) -> list[range]:
    """Returns the indices of each of up to `count` groups with at least one environment; larger groups come first."""
    count = min(num_envs, count)
    bounds = [-(-num_envs * k // count) for k in range(count + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def require_same_spaces(env_id: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Checks that all environments have the same (observation space, action space).

    Raises:
        EnvironmentRefused: Two differ.
    """
    for index, pair in enumerate(pairs):
        for name, first, other in zip(("observation_space", "action_space"), pairs[0], pair, strict=True):
            if other != first:
                raise EnvironmentRefused(
                    f"environment {env_id!r}: {name} is {first} at index 0 and {other} at index {index}; "
                    f"they must be equal"
                )
