"""The place of this process among those that `torchrun` has started, by the environment variables that it sets."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rl_training.errors import ConfigError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """The place of a process among the ranks."""

    rank: int
    ranks: int
    local_rank: int
    address: str
    """Where the ranks meet."""

    @property
    def on_loopback(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.address in ("localhost", "::1") or self.address.startswith("127.")


def find_place() -> Place | None:
    """Returns the place of this process; None if `torchrun` has not started it."""
    if not all(os.environ.get(name) for name in _VARIABLES):
        return None
    rank, ranks, local_rank = (int(os.environ[name]) for name in _VARIABLES[:3])
    return Place(rank, ranks, local_rank, os.environ["MASTER_ADDR"])


def require_ranks(ranks: int) -> None:
    """Checks that `torchrun`, if it has started this process, has started as many as the settings ask for.

    Raises:
        ConfigError: The numbers differ.
    """
    place = find_place()
    if place is not None and place.ranks != ranks:
        raise ConfigError(
            f"ranks: got {ranks}, and torchrun has started {place.ranks} processes (WORLD_SIZE); expected equal "
            f"numbers: set ranks={place.ranks}, or start {ranks} processes"
        )
