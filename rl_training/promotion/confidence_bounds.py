"""One-sided confidence bounds of a mean, for few values, skewed values and values of 0 or 1.

Student's bound is too high if the values are skewed to the left (a few failures among successes), because a sample with
few failures has both a high mean and a small spread. Gaffke's bound (Three test statistics for a nonparametric
one-sided hypothesis on the mean of a nonnegative variable, Mathematical Methods of Statistics 14, 2005) follows the
shape of the sample. It is a quantile of a mean whose weights are drawn at random, uniformly among all that sum to 1,
over the values and the worst possible value. For values of 0 or 1 it is the exact bound of Clopper and Pearson (1934).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import stdtrit  # type: ignore[import-untyped]

Values = npt.NDArray[np.float64]

_STEP = 0.2
_TURNS = np.arange(0.0, 8.0, _STEP)
_PATH = 1j * np.sinh(_TURNS)[:, np.newaxis]
_WEIGHTS = np.where(_TURNS == 0.0, 0.5, 1.0) * np.cosh(_TURNS) * _STEP / math.pi
"""The points of the upper half of a path of integration and their weights: the trapezoidal rule in sinh(u)."""

_GROUP = 8
"""So many factors are multiplied before a logarithm is taken; their product is far from the limits of floats."""


def compute_lower_bound(values: Sequence[float], confidence: float, *, worst: float | None = None) -> float:
    """Returns Gaffke's lower confidence bound of the mean; that of equal values is the value itself.

    Args:
        values: At least one value.
        confidence: Between 0 and 1.
        worst: The least value that is possible; by default, or if one of the values is less, the least of the values.
    """
    worst = min(values) if worst is None else min(worst, *values)
    best = max(values)
    if worst == best:
        return worst
    scale = max(abs(worst), abs(best))  # so that neither the largest nor the smallest numbers leave the range of floats
    low, high = worst / scale, best / scale
    shares = np.sort((np.asarray([worst, *values]) / scale - low) / (high - low))

    def excess(share: float) -> float:
        if share <= 0.0 or share >= 1.0:
            return share - (1 - confidence)
        return _compute_probability(shares - share) - (1 - confidence)

    return scale * (low + (high - low) * float(brentq(excess, 0.0, 1.0, xtol=1e-10)))


def compute_difference_bound(differences: Sequence[float], confidence: float) -> float:
    """Returns the lower confidence bound of a mean difference: the lower of Gaffke's and Student's.

    Gaffke's bound alone would be above 0 for a single win among ties, because it takes the least of the differences for
    the least that is possible. Student's, m - t(n - 1, confidence) * s / sqrt(n), is below 0 then.

    Args:
        differences: At least two differences, unless all are equal.
        confidence: Between 0 and 1.
    """
    scale = max(abs(value) for value in differences)
    if differences.count(differences[0]) == len(differences):
        return differences[0]
    n, scaled = len(differences), [value / scale for value in differences]
    mean = math.fsum(scaled) / n
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in scaled) / (n - 1))
    student = mean - float(stdtrit(n - 1, confidence)) * deviation / math.sqrt(n)
    return min(scale * student, compute_lower_bound(differences, confidence))


def _compute_probability(factors: Values) -> float:
    """Returns the probability that a weighted sum of independent exponential variables of mean 1 is at most 0.

    It is the integral of the moment generating function M(z) / z along a vertical line to the left of 0, here near the
    saddle point, where the integrand doesn't oscillate (Rice, Distribution of quadratic forms in normal random
    variables, SIAM Journal on Scientific and Statistical Computing 1, 1980).

    Args:
        factors: Factors of the variables, ascending, float64 [k]; the first is negative and the last positive.
    """

    def slope(z: float) -> float:
        return float(np.sum(factors / (1.0 - factors * z))) - 1.0 / z

    pole = 1.0 / float(factors[0])
    z = float(brentq(slope, pole * (1 - 1e-12), pole * 1e-12, xtol=1e-14 * -pole, rtol=0.01))
    scale = 1.0 / math.sqrt(float(np.sum((factors / (1.0 - factors * z)) ** 2)) + 1.0 / z**2)
    line = z + scale * _PATH
    padded = np.concatenate((factors, np.zeros(-len(factors) % _GROUP))).reshape(_GROUP, -1)
    logarithms = np.log(np.prod(1.0 - line[:, np.newaxis] * padded, axis=1)).sum(axis=1) + np.log(-line[:, 0])
    return scale * float(_WEIGHTS @ np.exp(-logarithms).real)
