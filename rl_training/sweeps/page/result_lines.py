"""Writes the result of a sweep as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.errors import printable
from rl_training.sweeps.trial_settings import format_point
from rl_training.sweeps.trials import HELD_OUT, rank_trials

if TYPE_CHECKING:
    from rl_training.sweeps.sweep_config import Direction
    from rl_training.sweeps.sweep_result import ConfirmedPoint, SweepResult
    from rl_training.sweeps.trials import Trial

SHOWN_TRIALS = 10
"""Number of trials, the best, that the text of a result lists."""

LEVEL = 0.05
"""The p-value above which a difference from the base config may be chance."""


def format_result(result: SweepResult) -> list[str]:
    """Returns the result of a sweep as lines."""
    where = "" if result.finished else " in complete rounds"
    if result.aggregate is not None:
        lines = list(_list_runs(result, result.aggregate))
    else:
        lines = [f"sweep {printable(result.name)} ({result.uid}): {count_states(result.search)}{where}"]
        lines += _list_best(result.search, result.metric, result.direction)
    if result.finished:
        lines += _list_confirmed(result)
        lines += explain_winner(result)
    if result.page is not None:
        lines.append(f"page: {result.page}")
    if result.folder is not None:
        lines.append(f"files: {result.folder}")
    if not result.finished and result.continue_with is not None:
        lines.append(f"stopped; no finished run is lost; to continue: {result.continue_with}")
    return lines


def count_states(trials: Sequence[Trial]) -> str:
    """Returns the number of trials and of those in each state: `30 trials, 25 complete, 5 pruned`."""
    states = [trial.state for trial in trials]
    count = "1 trial" if len(states) == 1 else f"{len(states)} trials"
    return ", ".join([count, *(f"{states.count(one)} {one}" for one in sorted(set(states)))])


def format_params(params: Mapping[str, Any]) -> str:
    """Returns settings as `learning_rate=0.001 gamma=0.98`, without secrets; says so if there are none."""
    return format_point(params) or "the base config's settings"


def format_summary(summary: Mapping[str, Any]) -> str:
    """Returns the interquartile mean of some runs with its interval: `-150.2 [-161, -142] (5 runs, mean -151.0)`."""
    interval = summary["iqm_interval"]
    ends = "" if interval is None else f" [{interval[0]:,.5g}, {interval[1]:,.5g}]"
    runs = "1 run" if summary["runs"] == 1 else f"{summary['runs']} runs, mean {summary['mean']:,.5g}"
    failed = f", {summary['failed']} failed" if summary.get("failed") else ""
    return f"{summary['iqm']:,.5g}{ends} ({runs}{failed})"


def _name_interval(summary: Mapping[str, Any]) -> str:
    return "" if summary["iqm_interval"] is None else " [95 % interval]"


def _list_runs(result: SweepResult, aggregate: Mapping[str, Any]) -> Iterator[str]:
    """Yields the runs of a single point, which differ in their seeds alone, and what they have in common."""
    runs = [run for trial in result.search for run in trial.runs]
    yield f"{len(runs)} seeds of {printable(result.name)} ({result.uid}), {aggregate['metric']} of each:"
    for run in runs:
        score = run.held_out if aggregate["metric"].startswith(HELD_OUT) else run.newest
        known = "no score" if score is None else f"{score:,.5g}"
        yield f"  seed {run.seed}: {known if run.error is None else f'failed: {run.error}'}  {run.run_dir}"
    yield f"interquartile mean{_name_interval(aggregate)}: {format_summary(aggregate)}"


def _list_best(trials: Sequence[Trial], metric: str, direction: Direction) -> Iterator[str]:
    ranked = rank_trials(trials, direction)[:SHOWN_TRIALS]
    if ranked:
        yield f"the best of the search by {metric}:"
    for trial in ranked:
        state = "" if trial.state == "complete" else f" ({trial.state} at step {trial.num_timesteps:,})"
        yield f"  trial {trial.number}: {trial.score:,.5g}{state}  {format_params(trial.params)}"


def _list_confirmed(result: SweepResult) -> Iterator[str]:
    if not result.confirmed:
        return
    seeds = len(result.confirmed[0].runs)
    yield (
        f"trained again on {seeds} new seed{'s' if seeds > 1 else ''}, "
        f"interquartile mean of {result.confirmed_metric} [95 % interval]:"
    )
    for point in result.confirmed:
        yield f"  {name_point(point)}: {describe_point(point)}"


def name_point(point: ConfirmedPoint) -> str:
    """Returns how texts name a point: by its trial in the search."""
    return "base config" if point.is_base else f"trial {point.search_trial}"


def describe_point(point: ConfirmedPoint) -> str:
    """Returns the confirmed score of a point, what the search saw, and the comparison with the base config."""
    parts = [f"{sum(run.state == 'failed' for run in point.runs)} of {len(point.runs)} runs failed"]
    if point.summary is not None:
        parts = [format_summary(point.summary)]
    if point.search_score is not None:
        parts.append(f"the search saw {point.search_score:,.5g}")
    if (better := point.improvement) is not None and point.p_value is not None:
        ends = "" if better.low is None else f" [{better.low:.2f}, {better.high:.2f}]"
        parts.append(f"beats the base config with probability {better.value:.2f}{ends}, p = {point.p_value:.2g}")
    return "; ".join(parts)


def explain_winner(result: SweepResult) -> list[str]:
    """Returns the winner in a sentence; nothing for a sweep with only one point."""
    if result.winner is not None and result.winner.is_base:
        return ["winner: the base config; no point that was trained again is better"]
    if (winner := result.winner) is not None:
        lines = [f"winner: {name_point(winner)}: {format_params(winner.params)}"]
        if winner.p_value is not None and winner.p_value > LEVEL:
            needed = f"; about {winner.seeds_needed} seeds a point would be needed" if winner.seeds_needed else ""
            lines.append(f"the winner can't be told from the base config yet (p = {winner.p_value:.2g}){needed}")
        return lines
    if result.best is not None:
        why = "every run of the confirmation failed" if result.confirmed else "it was not trained again on new seeds"
        return [f"best of the search: trial {result.best.number}: {format_params(result.best.params)}; {why}"]
    return []
