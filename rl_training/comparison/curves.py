"""Statistics of learning curves: sample efficiency, and the time until a threshold is reached.

Letters of shapes: R runs, S steps, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from rl_training.comparison.statistics import (
    CONFIDENCE,
    RESAMPLES,
    Band,
    Floats,
    compute_iqm,
    estimate_curve,
    list_shares,
    resample,
)

Curve = Mapping[int, float]
"""The mean return of each periodic evaluation of a run, by step."""


@dataclass(frozen=True)
class SampleEfficiency:
    """The interquartile mean of a group's runs at each step that all of them evaluated."""

    steps: npt.NDArray[np.int64]
    band: Band


@dataclass(frozen=True)
class TimeToThreshold:
    """When the runs of a group reach a threshold. A run that never does is censored at the end of its budget."""

    reached: int
    """The number of runs that reach it."""
    runs: int
    median: int | None
    """The step by which half of the runs have reached it, the median of Kaplan and Meier; None if fewer do."""
    low: int | None
    high: int | None
    """The ends of the interval of the median; None as an upper end if it lies beyond the budget, and as both for a
    single run."""

    def to_dict(self) -> dict[str, int | None]:
        """Returns the fields for JSON."""
        return asdict(self)


def estimate_sample_efficiency(curves: Sequence[Curve], *, confidence: float = CONFIDENCE) -> SampleEfficiency | None:
    """Returns the sample-efficiency curve of a group of runs; None if no step was evaluated by all of them."""
    steps = sorted(set(curves[0]).intersection(*curves[1:]))
    if not steps:
        return None
    scores_SRT = np.array([[[curve[step]] for curve in curves] for step in steps])
    band = estimate_curve(compute_iqm, scores_SRT, confidence=confidence)
    return SampleEfficiency(np.array(steps), band)


def find_time(curve: Curve, threshold: float) -> float:
    """Returns the first step at which a run's mean return is at or above the threshold; infinity if there is none."""
    return min((step for step, value in curve.items() if value >= threshold), default=math.inf)


def estimate_time_to_threshold(
    curves: Sequence[Curve], threshold: float, *, confidence: float = CONFIDENCE
) -> TimeToThreshold:
    """Returns when a group of runs reaches a threshold.

    Runs with the same budget that never reach it are later than all that do, which is all that a median needs to know.
    """
    times = np.array([[find_time(curve, threshold)] for curve in curves])
    low = high = math.inf
    if len(times) > 1:
        medians = np.sort(resample(_compute_median_time, times))
        low, high = (float(medians[round(share * (RESAMPLES - 1))]) for share in list_shares(confidence))
    return TimeToThreshold(
        int(np.isfinite(times).sum()),
        len(times),
        _convert_step(float(_compute_median_time(times))),
        _convert_step(low),
        _convert_step(high),
    )


def _compute_median_time(times: Floats) -> Floats:
    """Returns the step by which at least half of the runs have ended: [..., R, 1] to [...]."""
    ordered = np.sort(times[..., 0], axis=-1)
    medians: Floats = ordered[..., (ordered.shape[-1] - 1) // 2]
    return medians


def _convert_step(step: float) -> int | None:
    return int(step) if math.isfinite(step) else None
