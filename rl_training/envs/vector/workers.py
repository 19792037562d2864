"""What a vector environment asks of the workers that step its groups: processes of this machine, or Ray actors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from rl_training.envs.vector.answers import Reply
from rl_training.envs.vector.step_rows import StepRows

FIELDS = (
    "action_mask",
    "algo",
    "env_id",
    "env_kwargs",
    "max_episode_steps",
    "metrics",
    "reset_options",
    "total_timesteps",
    "training_wrappers",
    "wrappers",
)
"""The settings that make the environments of a group."""


class Worker(Protocol):
    """Steps a group of environments in another process; see `WorkerProcess` for its methods."""

    indices: range
    """Indices of the worker's environments within the run."""
    rows: slice
    """The same as a slice."""
    lost_episodes: Collection[int]
    """Environments whose episode was lost, because it could not be played again after a death of the worker."""

    def make(self, fields: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> None:
        """Requests the environments; `replies` returns the spaces of each."""

    def share(self, rows: StepRows) -> None:
        """Says where the arguments and results of steps are."""

    def ask(self, message: Any) -> None:
        """Sends a request; `replies` returns the answer."""

    def ring(self, bell: bytes) -> None:
        """Requests an operation whose arguments are in the rows."""

    def replies(self, seconds: float | None = None) -> list[Reply]:
        """Returns the worker's replies; an empty list if the operation of a bell succeeded."""

    def hang_up(self) -> None:
        """Asks the worker to close its environments and end."""

    def end(self, deadline: float) -> None:
        """Waits until the worker has ended, and kills it at `deadline` (monotonic seconds)."""
