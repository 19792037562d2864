"""Compares groups of runs: `rl_training.compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from rl_training.comparison.group_statistics import (
    SPEED,
    GroupStatistics,
    choose_profile_thresholds,
    compute_statistics,
    find_curve,
)
from rl_training.comparison.groups import Group, form_groups
from rl_training.comparison.recorded_run import RecordedRun
from rl_training.comparison.selection import require_comparable, select_runs
from rl_training.comparison.sources import LeftOut, find_runs, flatten_sources
from rl_training.comparison.statistics import CONFIDENCE, Floats
from rl_training.comparison.verdicts import Verdict, compare_groups
from rl_training.errors import UserError
from rl_training.runs.train_result import TrainResult

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Source = str | PathLike[str] | TrainResult | Sequence["Source"]
"""A source of runs; see `compare`."""

SHORT_NAMES = {"heldout": "heldout/return_mean", "eval": "eval/return_mean"}
"""Names that stand for a metric."""

FEW = 10
"""With fewer seeds, percentile intervals are too narrow."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`; it prints as the tables that the command line shows."""

    metric: str
    env_id: str
    total_timesteps: int
    confidence: float
    threshold: float | None
    threshold_from: str
    """Where the threshold comes from, in words; empty without one."""
    groups: tuple[GroupStatistics, ...]
    """The groups of runs; the first is the reference."""
    verdicts: tuple[Verdict, ...]
    """The comparison of each further group with the reference."""
    profile_at: Floats
    """The thresholds of the performance profiles."""
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""
    sweep: str | None = None
    """The MLflow run of the sweep whose points were compared; None if anything else was."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return {
            "metric": self.metric,
            "env_id": self.env_id,
            "total_timesteps": self.total_timesteps,
            "confidence": self.confidence,
            "threshold": self.threshold,
            "groups": [group.to_dict() for group in self.groups],
            "comparisons": [verdict.to_dict() for verdict in self.verdicts],
            "profile_thresholds": self.profile_at.tolist(),
            "left_out": [vars(each) for each in self.left_out],
            "notes": list(self.notes),
        }

    def lines(self, width: int | None = None) -> list[str]:
        """Returns the comparison as text of `width` columns, by default those of the terminal."""
        from rl_training.comparison.text_tables import format_comparison

        return format_comparison(self, width)

    def log(self) -> str:
        """Logs the page to MLflow: to the run of the sweep, or to a new run of the kind `comparison`.

        Returns:
            The id of the MLflow run.

        Raises:
            TrackingError: MLflow can't be reached.
        """
        from rl_training.comparison.comparison_run import log_comparison

        return log_comparison(self)[0]

    def to_html(self) -> str:
        """Returns the comparison as a page that needs no other file."""
        from rl_training.comparison.page import make_page

        return make_page(self)

    @property
    def table(self) -> pd.DataFrame:
        """The groups: a row each, with the ends of the intervals as `iqm_low`, `iqm_high` and so on."""
        from rl_training.comparison.frames import make_group_frame

        return make_group_frame(self)

    @property
    def comparisons(self) -> pd.DataFrame:
        """The verdicts: a row for each group but the reference."""
        from rl_training.comparison.frames import make_verdict_frame

        return make_verdict_frame(self)

    @property
    def scores(self) -> pd.DataFrame:
        """The runs: a row each, with `group`, `seed`, `score`, and the run's addresses."""
        from rl_training.comparison.frames import make_score_frame

        return make_score_frame(self)

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def compare(
    *sources: Source, metric: str = "heldout", threshold: float | None = None, confidence: float = CONFIDENCE
) -> Comparison:
    """Compares runs: groups those that differ in the seed alone, and compares each group with the first.

    Args:
        sources: The directory of a run, or a folder of such directories; the result of a training; an MLflow run id, a
            `run_uid` or `runs:/ID`; the name of an experiment in MLflow; a sweep, whose confirmed points are compared;
            or a list of those.
        metric: The metric whose last value is the score of a run, higher being better; `heldout` and `eval` stand for
            `heldout/return_mean` and `eval/return_mean`.
        threshold: The score that counts as good enough; by default `evaluation.stop_at_return` or else the reward
            threshold that Gymnasium has registered for the environment.
        confidence: The confidence of all intervals, and one minus the level of the tests.

    Raises:
        TrackingError: MLflow can't be reached.
        UserError: A source names no run, a run that was named is not complete, or the runs differ in the environment,
            the evaluation or the budget.
    """
    if not 0.5 <= confidence < 1:
        raise UserError(f"confidence: got {confidence}, expected at least 0.5 and less than 1")
    if threshold is not None and not math.isfinite(threshold):
        raise UserError(f"threshold: got {threshold}, expected a number")
    texts = flatten_sources(sources)
    if not texts:
        raise UserError("got no runs, expected directories, run ids, experiments or sweeps")
    metric = SHORT_NAMES.get(metric, metric)
    found = find_runs(texts, [*dict.fromkeys((metric, find_curve(metric), SPEED))])
    runs, left_out = select_runs(found, metric)
    if not runs:
        reasons = "; ".join(f"{each.run} {each.reason}" for each in left_out[:3])
        raise UserError(f"no run is left to compare{f': {reasons}' if reasons else ''}; name runs that are complete")
    groups, repeated = form_groups(runs)
    require_comparable(groups)
    threshold, threshold_from = (threshold, "given") if threshold is not None else find_threshold(runs[0], metric)
    profile_at = choose_profile_thresholds(groups, metric)
    statistics = [
        compute_statistics(group, metric, threshold=threshold, profile_at=profile_at, confidence=confidence)
        for group in groups
    ]
    return Comparison(
        metric,
        runs[0].config.for_evaluation().env_id,
        runs[0].config.total_timesteps,
        confidence,
        threshold,
        threshold_from,
        tuple(statistics),
        tuple(compare_groups(statistics, confidence)),
        profile_at,
        (*left_out, *repeated),
        tuple(_make_notes(groups, metric)),
        found.sweeps[0] if found.sweeps and len(texts) == 1 else None,
    )


def find_threshold(run: RecordedRun, metric: str) -> tuple[float | None, str]:
    """Returns the score that counts as good enough, and where it comes from; None for metrics other than the return."""
    config = run.config.for_evaluation()
    if not metric.endswith("/return_mean"):
        return None, ""
    if config.evaluation.stop_at_return is not None:
        return config.evaluation.stop_at_return, "evaluation.stop_at_return"
    if ":" in config.env_id or config.wrappers or config.env_kwargs:
        return None, ""
    import gymnasium as gym

    spec = gym.registry.get(config.env_id)
    found = None if spec is None else spec.reward_threshold
    return (None, "") if found is None else (float(found), "Gymnasium's threshold of the environment")


def _make_notes(groups: Sequence[Group], metric: str) -> list[str]:
    notes = []
    if any(1 < len(group.runs) < FEW for group in groups):
        notes.append(
            f"Intervals from fewer than {FEW} seeds are too narrow; the p-values are exact for any number of seeds."
        )
    runs = [run for group in groups for run in group.runs]
    if any(run.stop_reason == "return_reached" for run in runs):
        notes.append(
            "Some runs ended early at evaluation.stop_at_return, which levels their scores: compare the times."
        )
    for package in ("gymnasium", "rl_training"):
        found = sorted({run.versions[package] for run in runs if package in run.versions})
        if len(found) > 1:
            notes.append(f"The runs used {len(found)} versions of {package}: {', '.join(found)}.")
    if any(not run.points.get(find_curve(metric)) for run in runs):
        notes.append(f"Some runs have no {find_curve(metric)}, so their groups have no curve.")
    return notes
