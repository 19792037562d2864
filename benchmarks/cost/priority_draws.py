"""Measures three ways to draw transitions by priority and to set new priorities, for `docs/decisions.md`.

`python -m benchmarks.cost.priority_draws`
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import format_row
from rl_training.data.priorities import Priorities

CAPACITIES, BATCHES = (100_000, 1_000_000), (32, 128)
REPEATS, CALLS = 20, 20

Update = Callable[[np.random.Generator], object]
"""Draws a batch and sets new priorities in its places."""


def one_sum(capacity: int, batch: int) -> Update:
    """Returns an update with the cumulative sum of all priorities."""
    priorities = _draw_priorities(capacity)

    def update(rng: np.random.Generator) -> None:
        sums = priorities.cumsum()
        places = sums.searchsorted(_draw_points(batch, sums[-1], rng), side="right")
        priorities[places] = rng.random(batch)

    return update


def binary_tree(capacity: int, batch: int) -> Update:
    """Returns an update with a binary tree of sums, all transitions of a batch level by level."""
    depth = math.ceil(math.log2(capacity))
    tree = np.zeros(2 ** (depth + 1))
    tree[2**depth : 2**depth + capacity] = _draw_priorities(capacity)
    for level in reversed(range(depth)):
        tree[2**level : 2 ** (level + 1)] = tree[2 ** (level + 1) : 2 ** (level + 2)].reshape(-1, 2).sum(1)

    def update(rng: np.random.Generator) -> None:
        points = _draw_points(batch, tree[1], rng)
        nodes = np.ones(batch, np.int64)
        for _ in range(depth):
            left = tree[2 * nodes]
            is_right = points >= left
            points -= left * is_right
            nodes = 2 * nodes + is_right
        tree[nodes] = rng.random(batch)
        for _ in range(depth):
            nodes = nodes >> 1
            tree[nodes] = tree[2 * nodes] + tree[2 * nodes + 1]

    return update


def own(capacity: int, batch: int) -> Update:
    """Returns an update with `Priorities`."""
    priorities = Priorities(capacity, alpha=0.6, epsilon=1e-6)
    state = {"priorities": torch.from_numpy(_draw_priorities(capacity)), "largest": 1.0}
    priorities.load_state_dict(state, capacity)
    return lambda rng: priorities.update(priorities.draw(batch, capacity, rng), rng.random(batch))


def measure(update: Update) -> float:
    """Returns the shortest mean time of an update, in microseconds."""
    rng, times = np.random.default_rng(1), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CALLS):
            update(rng)
        times.append((time.perf_counter() - began) / CALLS)
    return 1e6 * min(times)


def _draw_priorities(capacity: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).random(capacity) + 0.1


def _draw_points(batch: int, total: float, rng: np.random.Generator) -> NDArray[np.float64]:
    points: NDArray[np.float64] = (np.arange(batch) + rng.random(batch)) * (total / batch)
    return points


def main() -> None:
    ways = {"one cumulative sum": one_sum, "binary tree": binary_tree, "Priorities": own}
    print(format_row(["transitions", "batch", *ways]))
    for capacity in CAPACITIES:
        for batch in BATCHES:
            times = [f"{measure(make(capacity, batch)):,.0f} us" for make in ways.values()]
            print(format_row([f"{capacity:,}", str(batch), *times]), flush=True)


if __name__ == "__main__":
    main()
