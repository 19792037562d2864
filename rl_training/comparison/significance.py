"""Whether two groups of runs differ: an exact test, the correction for many comparisons, and the seeds that are needed.

The test is that of Wilcoxon, Mann and Whitney in its exact form: if the two groups do not differ, every assignment of
the scores to the groups is equally likely, and the p-value is the share of assignments whose probability of
improvement is at least as far from one half as the observed one. It assumes no distribution, so it holds for few
seeds, for ties, and for groups in which some runs fail altogether, and it tests the very number that is reported.

Letters of shapes: R and Q runs of the two groups, T tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri  # type: ignore[import-untyped]
from scipy.stats import rankdata  # type: ignore[import-untyped]

from rl_training.comparison.statistics import Floats, compute_improvement

POWER = 0.8
"""The probability with which the seeds that are asked for show a difference that exists."""

MOST_SCORES = 200
"""The most scores of two groups together for which the test is computed exactly; its normal limit is used beyond."""


def compute_p_value(scores_x: Floats, scores_y: Floats) -> float:
    """Returns the two-sided p-value of the hypothesis that x, [R, T], and y, [Q, T], do not differ in any task.

    The scores are exchanged within each task. Equal scores share the mean of their ranks.
    """
    ranks = np.stack([rankdata(column) for column in np.concatenate([scores_x, scores_y]).T], axis=-1)
    doubled = np.rint(2 * ranks).astype(np.int64)  # whole numbers, also where ranks are shared
    size, runs = len(scores_x), len(doubled)
    deviation = abs(int(doubled[:size].sum()) - size * (runs + 1) * doubled.shape[1])
    if doubled.size > MOST_SCORES:
        return _approximate_p_value(doubled, size, deviation)
    counts = np.ones(1)
    for column in doubled.T:
        counts = np.convolve(counts, _count_rank_sums(column, size) / float(math.comb(runs, size)))
    sums = np.arange(len(counts)) - size * (runs + 1) * doubled.shape[1]
    return min(1.0, float(counts[np.abs(sums) >= deviation].sum()))


def _count_rank_sums(ranks: npt.NDArray[np.int64], size: int) -> Floats:
    """Returns how many subsets of `size` of the ranks have each sum, from 0 to the sum of all."""
    counts = np.zeros((size + 1, int(ranks.sum()) + 1))
    counts[0, 0] = 1.0
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, :-rank].copy()
    subsets: Floats = counts[size]
    return subsets


def _approximate_p_value(doubled: npt.NDArray[np.int64], size: int, deviation: int) -> float:
    """Returns the p-value in the limit of many runs, from the variance of a sum of ranks drawn without replacement."""
    runs = len(doubled)
    variance = size * (runs - size) / (runs - 1) * float(doubled.var(axis=0).sum())
    return 1.0 if variance == 0.0 else math.erfc(deviation / math.sqrt(2 * variance))


def correct_p_values(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values, corrected for their number by the method of Holm (1979).

    The i-th smallest of m p-values is multiplied by m - i + 1, and is no smaller than the one before it. If each
    difference is reported whose corrected value is below a level, the probability that any of them is false is at most
    that level.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = largest
    return corrected


def count_seeds_needed(
    scores_x: Floats, scores_y: Floats, *, level: float = 0.05, comparisons: int = 1, power: float = POWER
) -> int | None:
    """Returns how many seeds a group would be needed to tell the groups apart, if they differ as much as they seem to.

    With the observed probability of improvement p, the quantile function z of the normal distribution, T tasks and the
    level of the strictest of the corrected tests, a = level / comparisons, it is the least whole number of at least

        (z(1 - a / 2) + z(power))^2 / (6 T (p - 1/2)^2)

    (Noether, Sample size determination for some common nonparametric tests, JASA 82, 1987, for two groups of equal
    size), for which the exact test of completely separate groups, 2 / C(2n, n)^T, is not above a.

    Returns:
        The number of seeds; None if the observed probability is one half, which no number of seeds tells from nothing.
    """
    tasks, level = scores_x.shape[1], level / comparisons
    excess = abs(float(compute_improvement(scores_x, scores_y)) - 0.5)
    if excess == 0.0:
        return None
    quantiles = ndtri(1 - level / 2) + ndtri(power)
    wanted: int = math.ceil(quantiles**2 / (6 * tasks * excess**2))
    return max(find_least_seeds(level, tasks), wanted)


def find_least_seeds(level: float, tasks: int = 1) -> int:
    """Returns the least number of seeds of two equal groups whose exact test can have a p-value of at most `level`."""
    return next(n for n in itertools.count(1) if find_least_p_value(n, n, tasks) <= level)


def find_least_p_value(runs_x: int, runs_y: int, tasks: int = 1) -> float:
    """Returns the p-value of two groups whose scores do not overlap."""
    return float(2 / math.comb(runs_x + runs_y, runs_x) ** tasks)
