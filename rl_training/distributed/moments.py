"""Mean and variance over the rows of all ranks, from those of each rank.

Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
Sums of squares about each rank's own mean lose no digits, as sums of squares about zero would.

Shapes: R ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.distributed.share import Exchange


class Moments(NamedTuple):
    """The moments of some rows."""

    count: Any
    """The number of rows."""
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    """The sum of squared deviations from the mean."""


def measure(rows: NDArray[Any]) -> Moments:
    """Returns the moments of rows [n, ...], computed in float64; zeros without any row."""
    rows = rows.astype(np.float64)
    if not len(rows):
        return Moments(0, np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:]))
    mean = rows.mean(axis=0)
    return Moments(len(rows), mean, ((rows - mean) ** 2).sum(axis=0))


def combine(each: Moments) -> Moments:
    """Returns the moments of all rows, from those of each rank, whose fields have a first axis [R, ...].

    Equal means stay exact, so that rows that are equal on all ranks have no variance.
    """
    counts_R, means_R, squares_R = (np.asarray(part, np.float64) for part in each)
    count, mean, squares = counts_R[0], means_R[0], squares_R[0]
    for next_count, next_mean, next_squares in zip(counts_R[1:], means_R[1:], squares_R[1:], strict=True):
        total = count + next_count
        part = np.divide(next_count, total, out=np.zeros_like(total), where=total > 0)
        delta = next_mean - mean
        mean = mean + delta * part
        squares = squares + next_squares + delta**2 * (count * part)
        count = total
    return Moments(count, mean, squares)


def combine_ranks(exchange: Exchange, own: Moments) -> Moments:
    """Returns the moments of the rows of all ranks; each rank passes those of its own rows."""
    packed_R = exchange.gather(np.stack([np.full_like(own.mean, own.count), own.mean, own.squares]))
    count, mean, squares = combine(Moments(packed_R[:, 0], packed_R[:, 1], packed_R[:, 2]))
    return Moments(int(count.flat[0]), mean, squares)
