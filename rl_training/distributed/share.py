"""The share of the environments that one rank steps, and what ranks exchange.

Shapes: T steps, N environments of all ranks, n environments of this rank, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """The environments `first`, ..., `first + count - 1` of a run."""

    rank: int
    ranks: int
    num_envs: int
    """Environments of all ranks (N), a multiple of `ranks`."""

    @property
    def count(self) -> int:
        """Number of this rank's environments (n)."""
        return self.num_envs // self.ranks

    @property
    def first(self) -> int:
        """Index of this rank's first environment within the run."""
        return self.rank * self.count

    @property
    def rows(self) -> slice:
        """The place of this rank's environments among those of the run."""
        return slice(self.first, self.first + self.count)

    def select(self, order_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns this rank's transitions among some of all ranks, as indices into its own rollout.

        Args:
            order_B: Indices of transitions, step * N + environment.

        Returns:
            Indices step * n + environment - first, in the same order.
        """
        steps_B, envs_B = np.divmod(order_B, self.num_envs)
        own_B = envs_B // self.count == self.rank
        selected: NDArray[np.int64] = steps_B[own_B] * self.count + (envs_B[own_B] - self.first)
        return selected


class Exchange(Protocol):
    """What learning needs of the other ranks. All ranks call the same methods in the same order."""

    rank: int
    ranks: int

    def sum(self, vector: Tensor) -> None:
        """Replaces a vector by the sum of all ranks' vectors, which is the same to the last bit on all ranks."""

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the arrays of all ranks, which have the same shape and dtype, stacked by rank: [R, ...]."""
