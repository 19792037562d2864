"""Priorities of replayed transitions: draws in proportion to them, at a cost that hardly grows with their number.

The priorities are the leaves of a tree of sums with three levels: each node of the middle level is the sum of W leaves,
and each node of the top is the sum of W nodes of the middle, where W is the cube root of the number of transitions. A
node is always the sum of its children in their order, so its bits depend on the leaves alone and not on how they came
about: a checkpoint holds the leaves, and the sums that a resume computes are those of the run that was not stopped.

Shapes: B batch, W width of a node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.errors import CheckpointError
from rl_training.state_checks import require_finite_values, require_same_form, validate

LEVELS = 3
"""The number of levels; `docs/decisions.md` has the times of others."""
PRIORITY_BYTES = 9
"""Bytes per transition in a ring of 100,000 or more: eight, and less than one for the sums and for incomplete nodes."""


class Priorities:
    """The priority of each transition in a ring: (|error| + epsilon) ** alpha, and the largest one if it is new.

    Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.3, proportional prioritization.

    Args:
        capacity: Number of transitions in the ring.
        alpha: How much errors count, from 0 (all transitions have the same priority) to 1.
        epsilon: Priority of a transition without an error.
    """

    def __init__(self, capacity: int, alpha: float, epsilon: float) -> None:
        self.capacity, self._alpha, self._epsilon = capacity, alpha, epsilon
        self._width = math.ceil(capacity ** (1.0 / LEVELS))
        self._levels = [np.zeros((self._width**level, self._width)) for level in range(LEVELS)]
        self._leaves = self._levels[-1].reshape(-1)
        self._largest = 1.0

    def add(self, first: int, count: int) -> None:
        """Gives the transitions in `count` places of the ring, from `first` on, the largest priority so far."""
        stop = first + count
        self._leaves[first:stop] = self._largest
        for upper, lower in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            first, stop = first // self._width, -(-stop // self._width)
            upper.reshape(-1)[first:stop] = lower[first:stop].sum(1)

    def update(self, places_B: NDArray[np.int64], errors_B: NDArray[Any]) -> None:
        """Sets the priorities of the transitions in some places of the ring, given their errors."""
        priorities_B = (np.abs(errors_B.astype(np.float64)) + self._epsilon) ** self._alpha
        self._largest = max(self._largest, float(priorities_B.max()))
        self._leaves[places_B] = priorities_B
        nodes_B = places_B
        for upper, lower in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            nodes_B = nodes_B // self._width
            upper.reshape(-1)[nodes_B] = lower[nodes_B].sum(1)

    def draw(self, count: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws places in the ring in proportion to their priorities, one from each of `count` equal parts of the sum.

        Args:
            count: Number of places (B).
            size: Number of transitions in the ring.
            rng: Generator of the draws, which is advanced.

        Returns:
            The places, [B].
        """
        (top_W,), *lower_levels = self._levels
        sums_W = top_W.cumsum()
        rest_B = (np.arange(count) + rng.random(count)) * (sums_W[-1] / count)
        nodes_B = np.minimum(sums_W.searchsorted(rest_B, side="right"), self._width - 1)
        rest_B -= sums_W[nodes_B] - top_W[nodes_B]
        rows_B = np.arange(count)
        for level in lower_levels:
            children_BW = level[nodes_B]
            sums_BW = children_BW.cumsum(1)
            children_B = np.minimum((sums_BW <= rest_B[:, None]).sum(1), self._width - 1)
            rest_B -= sums_BW[rows_B, children_B] - children_BW[rows_B, children_B]
            nodes_B = nodes_B * self._width + children_B
        # A sum that was rounded down can lead past the last transition.
        places_B: NDArray[np.int64] = np.minimum(nodes_B, size - 1)
        return places_B

    def read(self, places_B: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the priorities in some places of the ring, [B]."""
        return self._leaves[places_B]

    def state_dict(self, size: int) -> dict[str, Any]:
        """Returns a copy of the priorities of the first `size` places, and the largest priority so far."""
        return {"priorities": torch.from_numpy(self._leaves[:size].copy()), "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any], size: int) -> None:
        """Restores what `state_dict` returned.

        Raises:
            CheckpointError: There are not `size` priorities, or one of them is not a positive number.
        """
        own = torch.from_numpy(self._leaves[:size])
        name = "priorities"
        saved = require_finite_values(name, require_same_form(name, state[name], own))
        largest = validate("largest priority", state["largest"], float)
        if not 0.0 < largest < math.inf or not bool((saved > 0.0).all()):
            raise CheckpointError("priorities: expected positive numbers, got others")
        self._largest = largest
        self._leaves[:size] = saved.numpy()
        for upper, lower in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            upper.reshape(-1)[:] = lower.sum(1)
