"""The statistics of each group of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.comparison.curves import (
    SampleEfficiency,
    TimeToThreshold,
    estimate_sample_efficiency,
    estimate_time_to_threshold,
)
from rl_training.comparison.groups import Group
from rl_training.comparison.selection import find_score, is_usual
from rl_training.comparison.statistics import (
    Band,
    Estimate,
    Floats,
    compute_iqm,
    compute_mean,
    compute_optimality_gap,
    compute_run_median,
    estimate,
    estimate_profile,
)

SPEED = "time/steps_per_second"

POINTS = 201
"""The number of thresholds at which a performance profile is computed."""


@dataclass(frozen=True)
class GroupStatistics:
    """A group of runs and what their scores say."""

    group: Group
    scores: Floats
    """The score of each run, [R, 1]."""
    iqm: Estimate
    mean: Estimate
    median: Estimate
    optimality_gap: Estimate | None
    """By how much the runs miss the threshold on average; None without a threshold."""
    time_to_threshold: TimeToThreshold | None
    """When the evaluations during training reach the threshold; None without a threshold, or without evaluations."""
    sample_efficiency: SampleEfficiency | None
    """None if the runs have no evaluated step in common."""
    profile: Band
    """The share of runs that score above each of the comparison's thresholds."""
    steps_per_second: float | None
    """The median of the runs' newest values."""

    def list_runs(self) -> list[dict[str, Any]]:
        """Returns the seed, the score and the addresses of each run, for JSON."""
        return [
            {
                "seed": run.config.seed,
                "score": float(score),
                "run_uid": run.run_uid,
                "run_id": run.run_id,
                "run_dir": run.run_dir,
            }
            for run, score in zip(self.group.runs, self.scores[:, 0], strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns the statistics for JSON."""
        times, curve = self.time_to_threshold, self.sample_efficiency
        gap = self.optimality_gap
        return {
            "name": self.group.name,
            "label": self.group.label,
            "settings": dict(self.group.differing),
            "runs": self.list_runs(),
            "iqm": self.iqm.to_dict(),
            "mean": self.mean.to_dict(),
            "median": self.median.to_dict(),
            "optimality_gap": gap and gap.to_dict(),
            "time_to_threshold": times and times.to_dict(),
            "sample_efficiency": curve and {"steps": curve.steps.tolist(), **_list_band(curve.band)},
            "profile": _list_band(self.profile),
            "steps_per_second": self.steps_per_second,
        }


def compute_statistics(
    group: Group, metric: str, *, threshold: float | None, profile_at: Floats, confidence: float
) -> GroupStatistics:
    """Returns the statistics of a group.

    Args:
        group: The group, each of whose runs has the metric.
        metric: The metric whose last value is the score of a run.
        threshold: The score that counts as good enough, if there is one.
        profile_at: The thresholds of the performance profile, [P].
        confidence: The confidence of all intervals.
    """
    scores = np.array([[find_score(run, metric)] for run in group.runs])
    curves = [
        {step: value for step, value in run.points.get(find_curve(metric), {}).items() if is_usual(value)}
        for run in group.runs
    ]
    gap = times = None
    if threshold is not None:
        gap = estimate(lambda drawn: compute_optimality_gap(drawn, threshold), scores, confidence=confidence)
        times = estimate_time_to_threshold(curves, threshold, confidence=confidence) if any(curves) else None
    speeds = [speed for run in group.runs if run.points.get(SPEED) and is_usual(speed := find_score(run, SPEED))]
    return GroupStatistics(
        group,
        scores,
        estimate(compute_iqm, scores, confidence=confidence),
        estimate(compute_mean, scores, confidence=confidence),
        estimate(compute_run_median, scores, confidence=confidence),
        gap,
        times,
        estimate_sample_efficiency(curves, confidence=confidence),
        estimate_profile(scores, profile_at, confidence=confidence),
        float(np.median(speeds)) if speeds else None,
    )


def find_curve(metric: str) -> str:
    """Returns the metric that shows during training how the score develops: for `heldout/NAME` it is `eval/NAME`."""
    group, _, name = metric.partition("/")
    return f"eval/{name}" if group == "heldout" else metric


def choose_profile_thresholds(groups: Sequence[Group], metric: str) -> Floats:
    """Returns equally spaced thresholds from just below the lowest score to just above the highest, [P]."""
    scores = [find_score(run, metric) for group in groups for run in group.runs]
    low, high = min(scores), max(scores)
    room = 0.05 * (high - low) or 0.05 * abs(low) or 1.0
    return np.linspace(low - room, high + room, POINTS)


def _list_band(band: Band) -> Mapping[str, Any]:
    return {
        "values": band.values.tolist(),
        "low": None if band.low is None else band.low.tolist(),
        "high": None if band.high is None else band.high.tolist(),
    }
