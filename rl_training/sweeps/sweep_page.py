"""What the driver of a sweep tells its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rl_training.sweeps.plan import Round

if TYPE_CHECKING:
    from rl_training.sweeps.study.study import StoredRound


class SweepPage(Protocol):
    """The page of a sweep, which people read while it runs and afterwards."""

    @property
    def run_id(self) -> str | None:
        """The MLflow run above the runs of the trials; None without one."""

    def update(self, rounds: Sequence[Round], incomplete: StoredRound | None = None) -> None:
        """Shows the complete rounds, and what is known of the one that is not complete."""
