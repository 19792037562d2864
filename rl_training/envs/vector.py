"""Environments stepped together, where those whose episode ended are reset by mask.

Leaner than Gymnasium's `SyncVectorEnv` where an environment's own step is quick: observations of a `Box` are copied
once, and infos, which nothing here reads and which can't always be batched, are left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from rl_training.errors import CheckpointError, EnvironmentRefused


class MaskedVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment, autoreset DISABLED, of single environments as `make_env` makes them.

    Args:
        env_id: The id in the settings, for messages.
        pairs: The (observation space, action space) of each environment.

    Raises:
        EnvironmentRefused: They differ in their spaces.
    """

    life_steps = 0
    """Steps since the run began: of each environment as many, since they step together."""

    def __init__(self, env_id: str, pairs: Sequence[tuple[Any, Any]]) -> None:
        _require_same_spaces(env_id, pairs)
        self.num_envs = len(pairs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = pairs[0]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: Sequence[Any] = [None] * self.num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those where `options["reset_mask"]` (bool [N]) is true.

        Args:
            seed: One a environment; a number stands for itself and those after it.
            options: Handed to the environments, but for `reset_mask`.

        Returns:
            The observations of all environments, those that were not reset as they were, and no infos.
        """
        each = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        rest = dict(options) if options is not None else None
        mask = rest.pop("reset_mask", None) if rest is not None else None
        rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        observations = list(self._observations)
        for i, (observation, _) in zip(rows, self._reset_rows(rows, each, rest), strict=True):
            observations[i] = observation
        self._observations = observations
        return self._batched(), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps all environments once; the arrays are new ones each time, and there are no infos."""
        self.life_steps += 1
        self._observations, reward, terminated, truncated, _ = zip(*self._step_rows(actions), strict=True)
        return self._batched(), np.array(reward, np.float64), np.array(terminated), np.array(truncated), {}

    def snapshots(self) -> list[dict[str, Any]]:
        """Returns what `restore` needs; see `EpisodeReplay.snapshot`."""
        return list(self.call("snapshot"))

    def restore(self, snapshots: Sequence[Mapping[str, Any]]) -> tuple[Any, list[int]]:
        """Plays each running episode again; see `EpisodeReplay.restore`.

        Returns:
            The observations, and the indices of the environments that could only begin a fresh episode.

        Raises:
            CheckpointError: The snapshots are of another number of environments.
        """
        require_count(len(snapshots), self.num_envs)
        exact = self.call_each("restore", snapshots)
        self._observations = self.call("last_observation")
        self.life_steps = int(snapshots[0]["life_steps"])
        return self._batched(), [i for i, same in enumerate(exact) if not same]

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment, or reads an attribute."""

    @abstractmethod
    def call_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Calls the method `name` of each environment with an argument of its own."""

    @abstractmethod
    def _reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Sequence[tuple[Any, dict[str, Any]]]:
        """Returns what `reset` of the environments `rows` returns; `seeds` has one for each of all N."""

    @abstractmethod
    def _step_rows(self, actions: Any) -> Sequence[tuple[Any, float, bool, bool, dict[str, Any]]]:
        """Returns what `step` of each environment returns."""

    def _batched(self) -> Any:
        """Returns the newest observations as arrays of their own."""
        space = self.single_observation_space
        if isinstance(space, spaces.Box):
            return np.array(self._observations)
        empty: Any = create_empty_array(space, self.num_envs, np.zeros)
        return concatenate(space, self._observations, empty)


def require_count(found: int, num_envs: int) -> None:
    """Checks the number of environments of a checkpoint.

    Raises:
        CheckpointError: The settings have another.
    """
    if found != num_envs:
        raise CheckpointError(f"the checkpoint has {found} environments; the settings have {num_envs}")


def _require_same_spaces(env_id: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    for index, pair in enumerate(pairs):
        for name, first, other in zip(("observation_space", "action_space"), pairs[0], pair, strict=True):
            if other != first:
                raise EnvironmentRefused(
                    f"environment {env_id!r}: {name} is {first} at index 0 and {other} at index {index}; "
                    f"they must be equal"
                )
