"""The result of a sweep: the winner and its score on seeds that the search has not used, beside the base config's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.comparison.significance import compute_p_value, correct_p_values, count_seeds_needed
from rl_training.comparison.statistics import Estimate, estimate_improvement, summarize_scores
from rl_training.security.secrets import redact
from rl_training.sweeps.confirmation import is_base
from rl_training.sweeps.plan import Round, RunRecord
from rl_training.sweeps.sweep_config import Direction
from rl_training.sweeps.trials import HELD_OUT, Trial, collect_trials, rank_trials

if TYPE_CHECKING:
    from rl_training.sweeps.loading import Sweep


@dataclass(frozen=True)
class ConfirmedPoint:
    """A point that was trained on seeds that the search has not used."""

    trial: int
    """The number of its trial in the confirmation."""
    search_trial: int | None
    """The trial of the search with these settings; None for the base config."""
    params: Mapping[str, Any]
    search_score: float | None
    """The score that the search saw, which is too good on average."""
    runs: tuple[RunRecord, ...]
    scores: tuple[float, ...]
    """The score of each run; empty if any of them failed."""
    summary: Mapping[str, Any] | None
    """Mean, interquartile mean and median of the scores with their intervals, as `summarize_scores` returns them."""
    is_base: bool
    improvement: Estimate | None = None
    """The probability that a run with these settings scores better than one of the base config, with its interval."""
    p_value: float | None = None
    """Of the hypothesis that the scores do not differ from the base config's, corrected for the number of points."""
    seeds_needed: int | None = None
    """The seeds a point that would tell it from the base config, if they differ as much as they seem to."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the point for JSON, without secrets."""
        return {
            "trial": self.trial,
            "search_trial": self.search_trial,
            "params": redact(dict(self.params)),
            "search_score": self.search_score,
            "scores": list(self.scores),
            "summary": self.summary,
            "is_base": self.is_base,
            "probability_of_improvement": None if self.improvement is None else self.improvement.to_dict(),
            "p_value": self.p_value,
            "seeds_needed": self.seeds_needed,
            "runs": [{"seed": r.seed, "run_id": r.run_id, "run_dir": r.run_dir, "error": r.error} for r in self.runs],
        }


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep, or how far it has come if it was stopped."""

    uid: str
    name: str
    metric: str
    direction: Direction
    confirmed_metric: str
    """The number that confirmed points are compared by: that of the held-out evaluation, if each run has one."""
    finished: bool
    """Whether search and confirmation are complete; False after a signal."""
    search: tuple[Trial, ...]
    """The trials of the search."""
    best: Trial | None
    """The best trial of the search; None if none has a score, or if the sweep has only one point."""
    confirmed: tuple[ConfirmedPoint, ...]
    """The base config and the best points, in the order of their trials; empty until all are trained."""
    winner: ConfirmedPoint | None
    """The confirmed point with the best interquartile mean; the base config if none is better."""
    aggregate: Mapping[str, Any] | None
    """The summary of the runs of a sweep with only one point, such as `rl-training train --seeds`."""
    run_id: str | None = None
    """The MLflow run with the sweep's page."""
    page: str | None = None
    """The address of that page, or the command that opens it."""
    folder: str | None = None
    """The folder with the files of that page."""
    continue_with: str | None = None
    """The command that continues a stopped sweep."""

    @property
    def winner_params(self) -> Mapping[str, Any] | None:
        """The settings of the winner by dotted key; of the best trial, if there was no confirmation."""
        if self.winner is not None:
            return self.winner.params
        return self.best.params if self.best is not None and self.finished else None

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON, without secrets."""
        params = self.winner_params
        return {
            "sweep": self.uid,
            "name": self.name,
            "finished": self.finished,
            "metric": self.metric,
            "direction": self.direction,
            "confirmed_metric": self.confirmed_metric,
            "winner": None if self.winner is None else self.winner.to_dict(),
            "winner_params": None if params is None else redact(dict(params)),
            "confirmed": [point.to_dict() for point in self.confirmed],
            "aggregate": self.aggregate,
            "trials": [_describe_trial(trial) for trial in self.search],
            "run_id": self.run_id,
            "page": self.page,
            "folder": self.folder,
            "continue_with": self.continue_with,
        }

    def lines(self) -> list[str]:
        """Returns the result for people."""
        from rl_training.sweeps.page.result_lines import format_result

        return format_result(self)


def _describe_trial(trial: Trial) -> dict[str, Any]:
    named = asdict(replace(trial, params=redact(dict(trial.params))))
    for run in named["runs"]:
        del run["summary"]
    return named


def make_result(sweep: Sweep, rounds: Sequence[Round], *, finished: bool, **addresses: str | None) -> SweepResult:
    """Returns the result of a sweep.

    Args:
        sweep: The sweep.
        rounds: Its complete rounds.
        finished: Whether nothing is left to train.
        addresses: The fields `run_id`, `page`, `folder` and `continue_with` of the result.
    """
    settings = sweep.settings
    search, confirmation = collect_trials(rounds, "search"), collect_trials(rounds, "confirmation")
    ranked = rank_trials(search, settings.direction)
    held_out = all(run.held_out is not None for trial in confirmation for run in trial.runs if trial.score is not None)
    confirmed = _confirm(sweep, confirmation, search, held_out) if finished else []
    single = not settings.space
    return SweepResult(
        uid=sweep.uid,
        name=sweep.name,
        metric=settings.metric,
        direction=settings.direction,
        confirmed_metric=_name_held_out(settings.metric) if held_out else settings.metric,
        finished=finished,
        search=tuple(search),
        best=ranked[0] if ranked and not single else None,
        confirmed=tuple(confirmed),
        winner=_choose_winner(confirmed, settings.direction),
        aggregate=aggregate_runs([run for trial in search for run in trial.runs], settings.metric) if single else None,
        **addresses,
    )


def _confirm(
    sweep: Sweep, confirmation: Sequence[Trial], search: Sequence[Trial], held_out: bool
) -> list[ConfirmedPoint]:
    found = {trial.key: trial for trial in reversed(rank_trials(search, sweep.settings.direction))}
    points = []
    for trial in confirmation:
        tried = found.get(trial.key)
        scores = () if trial.score is None else tuple(_get_score(run, held_out) for run in trial.runs)
        points.append(
            ConfirmedPoint(
                trial=trial.number,
                search_trial=None if tried is None else tried.number,
                params=trial.params,
                search_score=None if tried is None else tried.score,
                runs=trial.runs,
                scores=scores,
                summary=summarize_scores(scores) if scores else None,
                is_base=is_base(sweep.base, trial.params),
            )
        )
    return _compare_with_base(points, 1.0 if sweep.settings.direction == "maximize" else -1.0)


def _get_score(run: RunRecord, held_out: bool) -> float:
    score = run.held_out if held_out else run.newest
    assert score is not None
    return score


def _compare_with_base(points: Sequence[ConfirmedPoint], sign: float) -> list[ConfirmedPoint]:
    """Returns the points with the probability that each is better than the base config, and the p-values.

    The winner is chosen from several points, so the p-values are corrected for their number by Holm's method.
    """
    base = next((point for point in points if point.is_base and point.scores), None)
    others = [point for point in points if not point.is_base and point.scores]
    if base is None:
        return list(points)
    columns = {point.trial: sign * np.asarray(point.scores).reshape(-1, 1) for point in [base, *others]}
    p_values = correct_p_values([compute_p_value(columns[point.trial], columns[base.trial]) for point in others])
    compared = {}
    for point, p_value in zip(others, p_values, strict=True):
        pair = columns[point.trial], columns[base.trial]
        compared[point.trial] = replace(
            point,
            improvement=estimate_improvement(*pair),
            p_value=p_value,
            seeds_needed=count_seeds_needed(*pair, comparisons=len(others)),
        )
    return [compared.get(point.trial, point) for point in points]


def _choose_winner(points: Sequence[ConfirmedPoint], direction: Direction) -> ConfirmedPoint | None:
    """Returns the point with the best interquartile mean; of equal ones the first, and the base config is first."""
    scored = [(point.summary["iqm"], point) for point in points if point.summary is not None]
    if not scored:
        return None
    best = (max if direction == "maximize" else min)(iqm for iqm, _ in scored)
    return next(point for iqm, point in scored if iqm == best)


def aggregate_runs(runs: Sequence[RunRecord], metric: str) -> dict[str, Any] | None:
    """Returns the summary of runs with the same settings, for JSON: that of `summarize_scores`, and more.

    Args:
        runs: The runs.
        metric: The metric of the periodic evaluations.

    Returns:
        The summary of the complete runs' held-out scores, or of their newest evaluations if a run has no held-out
        score; `metric`, which of the two; and `failed`, the number of runs without a score. None if no run has one.
    """
    complete = [run for run in runs if run.state == "complete" and (run.held_out is not None or run.evaluations)]
    held_out = all(run.held_out is not None for run in complete)
    if not held_out:
        complete = [run for run in complete if run.evaluations]
    if not complete:
        return None
    scores = [_get_score(run, held_out) for run in complete]
    name = _name_held_out(metric) if held_out else metric
    return {"metric": name, **summarize_scores(scores), "failed": len(runs) - len(complete)}


def _name_held_out(metric: str) -> str:
    return f"{HELD_OUT}{metric.removeprefix('eval/')}"
