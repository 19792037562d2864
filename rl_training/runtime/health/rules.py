"""The rules by which training counts as gone bad: a function from the history of a run to a finding, for each.

The rules are free of scales: returns are compared with what a run has gained since its beginning and with the spread of
its evaluations, and patience is a share of the run's steps together with a least number of points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, takewhile
from statistics import median
from typing import NamedTuple, TypeVar

from rl_training.runtime.health.history import Evaluation, Point, Returns

LOST_SHARE = 0.5
"""The share of a run's gain that it has to lose before its evaluation counts as fallen far."""
FELL_EVALUATIONS, FELL_SHARE = 3, 0.25
"""Least number of evaluations in a row, and least share of the run's steps, for which the loss has to last."""

COLLAPSED = 0.01
"""The share of the first exploration below which a policy hardly explores."""
COLLAPSED_POINTS, COLLAPSED_SHARE = 5, 0.1
"""Least number of points in a row, and least share of the run's steps, for which it has to."""

UNEXPLAINED_POINTS, UNEXPLAINED_SHARE = 10, 0.3
"""Least number of points, and the share of the run's steps, over which the explained variance is judged."""
UNEXPLAINED_PART = 0.9
"""The part of these points that has to be negative."""
NEGLIGIBLE = 0.001
"""The share of the first value loss below which errors are too small to matter: about 3 % of the first values."""

DIVERGED = 10.0
"""How many times as large as plausible values Q-values have to be."""
DIVERGED_POINTS, DIVERGED_SHARE = 5, 0.05
"""Least number of points in a row, and least share of the run's steps, for which they have to."""
NETWORK_SCALE = 1.0
"""The order of the values of a network that has learned nothing, which are plausible whatever the rewards are."""

SAME_EPISODES, SAME_SHARE = 20, 1 / 3
"""Least number of episodes, and least share of the run's steps, in which all returns have to be equal."""
ROUNDING = 1e-9
"""The relative difference by which means of equal returns may differ."""

AnyPoint = TypeVar("AnyPoint", Point, Evaluation)


class Finding(NamedTuple):
    """What a rule has seen."""

    since: int
    """The environment step from which on it is so."""
    seen: str
    """What was seen, in words and numbers."""


class Gain(NamedTuple):
    """How far a run has come."""

    base: float
    """The return at the beginning."""
    best: Evaluation
    """The lower of the two evaluations in a row that were the best, so that one lucky evaluation is none."""

    @property
    def half(self) -> float:
        """The return at which `LOST_SHARE` of the gain is lost."""
        return self.best.mean - LOST_SHARE * (self.best.mean - self.base)


def find_gain(evaluations: Sequence[Evaluation], start: float | None) -> Gain | None:
    """Returns how far a run has come.

    Args:
        evaluations: The periodic evaluations so far.
        start: The mean return of the first training episodes; None if their environment is not that of evaluation.

    Returns:
        The gain; None if it is no larger than the spread of the returns of an evaluation.
    """
    if len(evaluations) < 2:
        return None
    first = evaluations[0]
    best = max((min(pair, key=_get_mean) for pair in pairwise(evaluations)), key=_get_mean)
    base = first.mean if start is None else min(start, first.mean)
    return Gain(base, best) if best.mean - base > max(first.std, best.std) else None


def find_fallen_evaluation(evaluations: Sequence[Evaluation], start: float | None, total: int) -> Finding | None:
    """Finds that the evaluation has been far below its best for long.

    An evaluation is far below if half of the gain is lost and its interval lies below that of the best.

    Args:
        evaluations: See `find_gain`.
        start: See `find_gain`.
        total: The run's length in steps.
    """
    gain = find_gain(evaluations, start)
    if gain is None:
        return None
    below = _get_end(evaluations, lambda one: one.mean < gain.half and one.high < gain.best.low)
    if not _is_long(below, FELL_EVALUATIONS, FELL_SHARE, total):
        return None
    return Finding(
        below[0].step,
        f"the mean return of {len(below)} evaluations in a row is {_span(one.mean for one in below)}, more than half "
        f"of the way back from {gain.best.mean:,.4g} (reached by step {gain.best.step:,}) to {gain.base:,.4g} at the "
        f"beginning",
    )


def find_collapsed_exploration(
    shares: Sequence[Point], evaluations: Sequence[Evaluation], start: float | None, total: int
) -> Finding | None:
    """Finds that a policy has stopped exploring before it has learned anything.

    A policy that has learned may be certain of its actions: it keeps at least half of a gain. Two evaluations are the
    least that show this.

    Args:
        shares: The exploration, as shares of the largest (see `rl_training.runtime.health.exploration`).
        evaluations: See `find_gain`.
        start: See `find_gain`.
        total: The run's length in steps.
    """
    narrow = _get_end(shares, lambda point: point.value < COLLAPSED)
    if len(evaluations) < 2 or not _is_long(narrow, COLLAPSED_POINTS, COLLAPSED_SHARE, total):
        return None
    gain, newest = find_gain(evaluations, start), evaluations[-1].mean
    if gain is not None and newest >= gain.half:
        return None
    return Finding(
        narrow[0].step,
        f"the policy hardly explores any more ({100 * narrow[-1].value:.2g} % of full exploration) and has learned "
        f"little (the newest evaluation is {newest:,.4g}, the first was {evaluations[0].mean:,.4g})",
    )


def find_unexplained_variance(
    points: Sequence[Point], losses: Sequence[Point], returns: Returns | None, total: int
) -> Finding | None:
    """Finds that the value function has predicted returns worse than a constant for long.

    Once a task is solved, its returns may hardly differ, and the smallest errors vary more than they do. So the value
    loss must not have become negligible.

    Args:
        points: The explained variance, at most 1; negative if the errors vary more than the returns.
        losses: The value loss, whose first point shows the size of values that nothing predicts.
        returns: The mean returns of training episodes. If all are equal, there is nothing to explain.
        total: The run's length in steps.
    """
    if not points or (returns is not None and _are_equal(returns.lowest, returns.highest)):
        return None
    begin = points[-1].step - UNEXPLAINED_SHARE * total
    recent = [point for point in points if point.step >= begin]
    if points[0].step > begin or len(recent) < UNEXPLAINED_POINTS:
        return None
    errors = [point.value for point in losses if point.step >= begin]
    if errors and median(errors) < NEGLIGIBLE * losses[0].value:
        return None
    negative = [point for point in recent if point.value < 0]
    if len(negative) < UNEXPLAINED_PART * len(recent):
        return None
    return Finding(
        negative[0].step,
        f"explained variance was negative at {len(negative)} of the last {len(recent)} points (median "
        f"{median(point.value for point in recent):.2g}): the value function predicts returns worse than a constant",
    )


def find_diverged_values(points: Sequence[Point], largest_value: float, total: int) -> Finding | None:
    """Finds that Q-values grow beyond all that the rewards can explain.

    Args:
        points: Q-values.
        largest_value: The largest plausible value (see `plausible_value`).
        total: The run's length in steps.
    """
    limit = DIVERGED * max(largest_value, NETWORK_SCALE)
    beyond = _get_end(points, lambda point: abs(point.value) > limit)
    if not _is_long(beyond, DIVERGED_POINTS, DIVERGED_SHARE, total) or abs(beyond[-1].value) < abs(beyond[0].value):
        return None
    return Finding(
        beyond[0].step,
        f"Q-values have grown from {beyond[0].value:,.4g} to {beyond[-1].value:,.4g}, and the rewards so far explain "
        f"values up to {largest_value:,.4g}",
    )


def find_equal_returns(returns: Returns | None, evaluations: Sequence[Evaluation], total: int) -> Finding | None:
    """Finds that all returns since the beginning are equal: no reward has been found that tells actions apart.

    Args:
        returns: The mean returns of training episodes.
        evaluations: The periodic evaluations so far.
        total: The run's length in steps.
    """
    if returns is None or returns.episodes < SAME_EPISODES:
        return None
    if returns.last_step - returns.first_step < SAME_SHARE * total or not _are_equal(returns.lowest, returns.highest):
        return None
    means = [one.mean for one in evaluations] or [0.0]
    if not _are_equal(min(means), max(means)) or any(one.std > ROUNDING * abs(one.mean) for one in evaluations):
        return None
    return Finding(
        returns.first_step, f"the returns of all {returns.episodes:,} training episodes are {returns.first:,.4g}"
    )


def plausible_value(return_mean: float, length_mean: float, gamma: float) -> float:
    """Returns the largest value of a state that episodes of this return make plausible, in magnitude.

    That is the return itself, or what its mean reward is worth if it never ends: |R| / L / (1 - gamma), because values
    bootstrap beyond time limits.

    Args:
        return_mean: R, the mean return of episodes.
        length_mean: L, their mean length in steps.
        gamma: The discount factor; 1 for values that only ends of episodes bound.
    """
    endless = 0.0 if gamma >= 1.0 else abs(return_mean) / max(length_mean, 1.0) / (1.0 - gamma)
    return max(abs(return_mean), endless)


def _get_mean(evaluation: Evaluation) -> float:
    return evaluation.mean


def _get_end(points: Sequence[AnyPoint], holds: Callable[[AnyPoint], bool]) -> list[AnyPoint]:
    """Returns the points at the end for which a condition holds, in order."""
    return list(takewhile(holds, reversed(points)))[::-1]


def _is_long(points: Sequence[AnyPoint], least: int, share: float, total: int) -> bool:
    """Returns whether there are enough points, and whether they lie far enough apart."""
    return len(points) >= least and points[-1].step - points[0].step >= share * total


def _are_equal(low: float, high: float) -> bool:
    return math.isclose(low, high, rel_tol=ROUNDING, abs_tol=0.0)


def _span(values: Iterable[float]) -> str:
    listed = list(values)
    low, high = f"{min(listed):,.4g}", f"{max(listed):,.4g}"
    return low if low == high else f"{low} to {high}"
