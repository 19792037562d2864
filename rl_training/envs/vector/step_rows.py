"""Inputs and results of a step, as arrays in memory that processes can share: one row for each environment.

Shapes: `N` environments, `*O` one observation as its space declares it, `*A` one action of the environment,
`K` numbers of an episode.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.space_leaves import list_leaves


class StepRows:
    """Arrays of N rows; each process writes the rows of its own environments.

    Args:
        observation_space: Observation space of one environment; each of its parts has an array form.
        action_space: Action space of one environment.
        num_envs: Number of environments (N).
        num_numbers: Number of the names of `EpisodeNumbers` (K).
        memory: Descriptor of an open file that holds the arrays for all processes that map it; -1 for private memory.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int,
        num_numbers: int,
        memory: int = -1,
    ) -> None:
        self._space, self._leaves = observation_space, list_leaves(observation_space)
        parts = [(f"observation_{k}", leaf.space) for k, leaf in enumerate(self._leaves)]
        rows = [
            (name, space.dtype, (num_envs, *(space.shape or ()))) for name, space in [*parts, ("action", action_space)]
        ]
        rows += [(name, np.dtype(kind), (num_envs,)) for name, kind in _FLAT]
        rows += [("numbers", np.dtype(np.float64), (num_envs, num_numbers))]
        arrays = _map_arrays(np.dtype(rows, align=True), memory)
        self.action: NDArray[Any] = arrays["action"]
        """[N, *A] the actions of the next step."""
        self.ended: NDArray[np.bool_] = arrays["ended"]
        """[N] whether the next episode is to begin."""
        self.reward: NDArray[np.float64] = arrays["reward"]
        """[N] the rewards of the newest step."""
        self.terminated: NDArray[np.bool_] = arrays["terminated"]
        """[N] whether the newest step ended the episode in a terminal state."""
        self.truncated: NDArray[np.bool_] = arrays["truncated"]
        """[N] whether the newest step cut the episode, for example at a time limit."""
        self.numbers: NDArray[np.float64] = arrays["numbers"]
        """[N, K] the numbers of each environment's newest ended episode; see `EpisodeNumbers`."""
        self._columns = [arrays[name] for name, _ in parts]
        self._results = [*self._columns, self.reward, self.terminated, self.truncated, self.numbers]
        self.put: Callable[[int, Any], None] = self._put_parts
        """Writes the newest observation of an environment into its row."""
        self.observations: Callable[[], Any] = self._collect_parts
        """Returns a copy of the newest observations [N, *O]: an array, or a dict or tuple of arrays."""
        if self._leaves[0].space is observation_space:  # the usual case, without overhead
            self.put, self.observations = self._columns[0].__setitem__, self._columns[0].copy

    def copy(self, rows: slice) -> list[NDArray[Any]]:
        """Returns copies of the results of some environments, for `write` in another process."""
        return [column[rows].copy() for column in self._results]

    def write(self, rows: slice, results: Sequence[NDArray[Any]]) -> None:
        """Writes what `copy` returned."""
        for column, values in zip(self._results, results, strict=True):
            column[rows] = values

    def write_observation(self, row: int, results: Sequence[NDArray[Any]], at: int) -> None:
        """Writes the observation of one environment from what `copy` returned, where its row is `at`."""
        for column, values in zip(self._columns, results, strict=False):
            column[row] = values[at]

    def has_observation(self, row: int, results: Sequence[NDArray[Any]], at: int) -> bool:
        """Returns whether the observation of an environment equals the one that `copy` returned; see there."""
        return all(
            np.array_equal(column[row], values[at], equal_nan=values.dtype.kind in "fc")
            for column, values in zip(self._columns, results, strict=False)
        )

    def cut(self, row: int, before: Sequence[NDArray[Any]]) -> None:
        """Replaces the result of a step by the end of the episode, cut where it was `before`, a copy of this row."""
        self.write_observation(row, before, 0)
        self.reward[row], self.terminated[row], self.truncated[row] = 0.0, False, True
        self.numbers[row] = np.nan

    def _put_parts(self, row: int, observation: Any) -> None:
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[row] = leaf.pick(observation)

    def _collect_parts(self) -> Any:
        return _assemble(self._space, iter(self._columns))


_FLAT = (("ended", np.bool_), ("reward", np.float64), ("terminated", np.bool_), ("truncated", np.bool_))


@contextmanager
def open_shared_file() -> Iterator[int]:
    """Opens a nameless file for `StepRows`; its memory lives until the last process that has mapped it ends.

    Yields:
        The descriptor of the file, open within the block.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rl_training")
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile() as file:
            yield file.fileno()


def _map_arrays(layout: np.dtype[Any], memory: int) -> NDArray[Any]:
    if memory >= 0:
        os.ftruncate(memory, layout.itemsize)  # harmless in the second process, which asks for the same size
    return np.ndarray((), layout, mmap(memory, layout.itemsize))


def _assemble(space: gym.Space[Any], columns: Iterator[NDArray[Any]]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _assemble(part, columns) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(part, columns) for part in space.spaces)
    return next(columns).copy()
