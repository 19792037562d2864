"""Statistics over the scores of several runs, as in Agarwal et al. 2021 (arXiv:2108.13264, "the paper").

Letters of shapes: R runs (or Q, those of another group), T tasks, B resamples, S steps, P points of a profile. The
scores of one environment have a single column. A statistic takes scores [..., R, T] and returns one number for each
leading index.

Intervals are percentiles of the stratified bootstrap: the runs of each task are drawn again with replacement, as many
as there are, and the statistic is computed from each such resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Statistic = Callable[..., Floats]

RESAMPLES = 10_000
"""Resamples of the bootstrap. The ends of a 95 % interval are then at their percentile within 0.16 points."""

CONFIDENCE = 0.95

_BLOCK = 2**20
"""The most numbers that are resampled at once."""

_MOST_RESULTS = 2**23
"""The most statistics of resamples that are held at once; all steps of a curve have the same resamples."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its interval."""

    value: float
    low: float | None
    high: float | None
    """The ends of the interval; None for a single run, whose spread is not known."""

    def to_dict(self) -> dict[str, float | None]:
        """Returns the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Band:
    """A curve and its pointwise interval."""

    values: Floats
    low: Floats | None
    high: Floats | None
    """The ends of the interval at each point; None for a single run."""


def compute_mean(scores: Floats) -> Floats:
    """Returns the mean over tasks of the mean over runs: [..., R, T] to [...]."""
    means: Floats = scores.mean(axis=-2).mean(axis=-1)
    return means


def compute_median(scores: Floats) -> Floats:
    """Returns the median over tasks of the mean over runs: [..., R, T] to [...]; the mean, if there is one task."""
    medians: Floats = np.median(scores.mean(axis=-2), axis=-1)
    return medians


def compute_run_median(scores: Floats) -> Floats:
    """Returns the median of the runs of all tasks: [..., R, T] to [...]."""
    medians: Floats = np.median(scores, axis=(-2, -1))
    return medians


def compute_iqm(scores: Floats) -> Floats:
    """Returns the interquartile mean of the runs of all tasks: [..., R, T] to [...].

    The quarter of the scores that are lowest and the quarter that are highest, each rounded down to a whole number of
    scores, are left out: the 25 % trimmed mean (section 4.3 of the paper).
    """
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    count = ordered.shape[-1]
    means: Floats = ordered[..., count // 4 : count - count // 4].mean(axis=-1)
    return means


def compute_optimality_gap(scores: Floats, threshold: float) -> Floats:
    """Returns by how much the runs of all tasks miss a threshold on average: [..., R, T] to [...].

    A score above the threshold counts as the threshold (section 4.3 of the paper, where it is gamma).
    """
    gaps: Floats = threshold - np.minimum(scores, threshold).mean(axis=(-2, -1))
    return gaps


def compute_improvement(scores_x: Floats, scores_y: Floats) -> Floats:
    """Returns the probability that a run of x scores above a run of y: [..., R, T] and [..., Q, T] to [...].

    It is the share of such pairs within each task, in which ties count half, averaged over tasks (section 4.3 of the
    paper).
    """
    x, y = scores_x[..., :, np.newaxis, :], scores_y[..., np.newaxis, :, :]
    shares: Floats = ((x > y) + 0.5 * (x == y)).mean(axis=(-3, -2)).mean(axis=-1)
    return shares


def compute_mean_difference(scores_x: Floats, scores_y: Floats) -> Floats:
    """Returns the mean of x less the mean of y, over tasks and runs: [..., R, T] and [..., Q, T] to [...]."""
    differences: Floats = compute_mean(scores_x) - compute_mean(scores_y)
    return differences


def resample(
    statistic: Statistic, *groups: Floats, resamples: int = RESAMPLES, seed: int = 0, pairs: bool = False
) -> Floats:
    """Returns a statistic of each resample of the runs.

    Args:
        statistic: A function of the scores of all groups.
        groups: The scores of each group, [..., R, T]; the groups are resampled independently, and the leading indices
            of a group share its resamples.
        resamples: The number of resamples.
        seed: The seed of the resamples.
        pairs: Whether the statistic compares each run of one group with each of the other, which takes more memory.

    Returns:
        The statistics, [..., B].
    """
    rng = np.random.default_rng(seed)
    size = math.prod(group.shape[-2] for group in groups) if pairs else 1
    size *= max(group.size for group in groups)
    return np.concatenate(
        [statistic(*(_draw_runs(group, rng, count) for group in groups)) for count in _split(resamples, size)], axis=-1
    )


def _split(resamples: int, size: int) -> Iterator[int]:
    """Yields the number of resamples in each block, if one resample takes `size` numbers."""
    block = max(1, _BLOCK // size)
    for start in range(0, resamples, block):
        yield min(block, resamples - start)


def _draw_runs(scores: Floats, rng: np.random.Generator, count: int) -> Floats:
    """Returns `count` resamples of the runs within each task: [..., R, T] to [..., B, R, T]."""
    runs, tasks = scores.shape[-2:]
    drawn = rng.integers(runs, size=(count, runs, tasks))
    resamples: Floats = scores[..., drawn, np.arange(tasks)]
    return resamples


def estimate(statistic: Statistic, *groups: Floats, confidence: float = CONFIDENCE, pairs: bool = False) -> Estimate:
    """Returns a statistic of the scores of one or two groups, [R, T] each, and its interval; see `resample`.

    Raises:
        ValueError: A group has no runs, or a score is not finite.
    """
    _require_scores(groups)
    value = float(statistic(*groups))
    if any(group.shape[-2] == 1 for group in groups):
        return Estimate(value, None, None)
    low, high = _find_ends(resample(statistic, *groups, pairs=pairs), confidence)
    return Estimate(value, float(low), float(high))


def estimate_curve(statistic: Statistic, scores: Floats, *, confidence: float = CONFIDENCE) -> Band:
    """Returns a statistic of the scores at each of S steps, [S, R, T], with its pointwise interval.

    With `compute_iqm` it is the sample-efficiency curve (section 4.4 of the paper).

    Raises:
        ValueError: There are no runs, or a score is not finite.
    """
    _require_scores([scores])
    values = statistic(scores)
    if scores.shape[-2] == 1:
        return Band(values, None, None)
    parts = np.array_split(scores, math.ceil(len(scores) * RESAMPLES / _MOST_RESULTS))
    ends = [_find_ends(resample(statistic, part), confidence) for part in parts]
    return Band(values, *np.concatenate(ends, axis=-1))


def estimate_profile(scores: Floats, thresholds: Floats, *, confidence: float = CONFIDENCE) -> Band:
    """Returns the performance profile: the share of runs, [R, T], that score above each of the thresholds, [P].

    It is the run-score distribution of section 4.2 of the paper, with pointwise intervals.

    Raises:
        ValueError: There are no runs, or a score is not finite.
    """
    _require_scores([scores])
    above = (scores > thresholds[:, np.newaxis, np.newaxis]).astype(np.float64)
    return estimate_curve(compute_mean, above, confidence=confidence)


def estimate_improvement(scores_x: Floats, scores_y: Floats, *, confidence: float = CONFIDENCE) -> Estimate:
    """Returns the probability that a run of x, [R, T], scores above a run of y, [Q, T], and its interval.

    Raises:
        ValueError: A group has no runs, or a score is not finite.
    """
    return estimate(compute_improvement, scores_x, scores_y, confidence=confidence, pairs=True)


def list_shares(confidence: float) -> tuple[float, float]:
    """Returns the shares of the resamples below the two ends of an interval."""
    return (1 - confidence) / 2, (1 + confidence) / 2


def _find_ends(resamples: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Returns the ends of the percentile interval: [..., B] to two of [...]."""
    low, high = np.quantile(resamples, list_shares(confidence), axis=-1)
    return low, high


def _require_scores(groups: Sequence[Floats]) -> None:
    for group in groups:
        if group.shape[-2] == 0:
            raise ValueError("got a group without runs, expected at least one score")
        if not np.isfinite(group).all():
            raise ValueError("got a score that is not finite, expected numbers")


def summarize_scores(scores: Sequence[float]) -> dict[str, Any]:
    """Returns the summary of the scores of several runs in one environment, for JSON.

    Args:
        scores: The score of each run.

    Returns:
        `runs`, the number of scores; `mean`, `iqm` and `median`, each with `low` and `high` (None for a single run)
        under `mean_interval`, `iqm_interval` and `median_interval`; `std`, the sample standard deviation (None for a
        single run); `min`, `max`, and `confidence`.

    Raises:
        ValueError: There are no scores, or one is not finite.
    """
    column = np.asarray(scores, np.float64).reshape(-1, 1)
    summary: dict[str, Any] = {"runs": len(column), "confidence": CONFIDENCE}
    statistics = {"mean": compute_mean, "iqm": compute_iqm, "median": compute_run_median}
    for name, statistic in statistics.items():
        found = estimate(statistic, column)
        summary[name] = found.value
        summary[f"{name}_interval"] = None if found.low is None else [found.low, found.high]
    summary["std"] = float(column.std(ddof=1)) if len(column) > 1 else None
    return {**summary, "min": float(column.min()), "max": float(column.max())}
