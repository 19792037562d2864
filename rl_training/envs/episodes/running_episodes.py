"""Counts the returns and lengths of the episodes that are running, one in each of N environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import CheckpointError
from rl_training.state_checks import require_finite_values, require_same_form


class RunningEpisodes:
    """The return and length of each environment's running episode.

    Args:
        num_envs: Number of environments (N).
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        """[N] the sum of the running episode's rewards."""
        self._began = np.zeros(num_envs, np.int64)
        # [N] the step of the run at which the episode began, so that a step has nothing to count.

    def end(self, rows: NDArray[np.intp], life_steps: int) -> tuple[list[float], list[int]]:
        """Begins the next episode in some environments.

        Args:
            rows: The indices of the environments whose episode ended.
            life_steps: Steps of each environment since the run began.

        Returns:
            The returns and lengths of the episodes that ended.
        """
        returns, lengths = self.returns[rows].tolist(), (life_steps - self._began[rows]).tolist()
        self.returns[rows], self._began[rows] = 0.0, life_steps
        return returns, lengths

    def state_dict(self, life_steps: int) -> dict[str, Any]:
        """Returns the counts, for environments whose own snapshots have none."""
        return {"returns": self.returns.copy(), "lengths": life_steps - self._began}

    def load_state_dict(self, state: Mapping[str, Any], life_steps: int) -> None:
        """Restores what `state_dict` returned.

        Raises:
            CheckpointError: The counts belong to another number of environments, or are none.
        """
        returns = require_same_form("running/returns", state["returns"], self.returns)
        lengths = require_same_form("running/lengths", state["lengths"], self._began)
        if (lengths < 0).any() or (lengths > life_steps).any():
            raise CheckpointError(f"running/lengths: an episode is not between 0 and {life_steps} steps long")
        self.returns[:], self._began[:] = require_finite_values("running/returns", returns), life_steps - lengths

    def load_snapshots(self, snapshots: Sequence[Mapping[str, Any]], kept: Iterable[int], life_steps: int) -> None:
        """Restores the counts of episodes that were played again; the others begin now.

        Args:
            snapshots: The snapshot of each environment; see `EpisodeReplay.snapshot`.
            kept: The indices of the environments whose episode continues.
            life_steps: Steps of each environment since the run began.
        """
        self.returns[:], self._began[:] = 0.0, life_steps
        for i in kept:
            self.returns[i] = snapshots[i]["episode_return"]
            self._began[i] -= snapshots[i]["episode_length"]
