"""Describes the page of a sweep for MLflow: tags, parameters, metrics and text, in `page.json` of its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, FiniteFloat, with_config
from typing_extensions import TypedDict

from rl_training.security.secrets import redact
from rl_training.state_checks import Count
from rl_training.sweeps.page.page_files import COORDINATES, HISTORY, IMPORTANCE
from rl_training.sweeps.page.result_lines import (
    count_states,
    describe_point,
    explain_winner,
    format_params,
    format_summary,
    name_point,
)
from rl_training.sweeps.sweep_config import Direction
from rl_training.sweeps.trials import Trial, rank_trials, track_best
from rl_training.tracking.mlflow_links import make_run_fragment
from rl_training.tracking.mlflow_names import KIND, SWEEP, flatten
from rl_training.tracking.mlflow_run import RUN_ID as IDENTITY
from rl_training.tracking.run_description import get_user

if TYPE_CHECKING:
    from rl_training.sweeps.loading import Sweep
    from rl_training.sweeps.sweep_result import SweepResult

RUN_ID, EXPERIMENT_ID = "@RUN_ID@", "@EXPERIMENT_ID@"
"""Placeholders in the text of the page, for ids that are known when it is sent."""

SHOWN_TRIALS = 5
"""Number of trials, the best, that the text lists."""

Status = Literal["RUNNING", "FINISHED", "KILLED", "FAILED"]


@with_config(extra="forbid")
class Point(TypedDict):
    """A point of a metric."""

    name: str
    step: Count
    value: FiniteFloat


@with_config(extra="forbid")
class PageRecord(TypedDict):
    """The content of `page.json`: all that MLflow is to hold, besides the files of the folder."""

    run_uid: Annotated[str, Field(pattern=f"^{IDENTITY.pattern}$")]
    experiment: str
    run_name: str
    started: FiniteFloat
    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[Point]
    note: str
    """The text of the page, in Markdown."""
    status: Status
    winner: str | None
    """The MLflow run of the winner's best seed."""


def make_record(
    sweep: Sweep,
    search: Sequence[Trial],
    started: float,
    pictures: Sequence[str],
    *,
    result: SweepResult | None = None,
    error: str | None = None,
) -> PageRecord:
    """Returns the record of a page.

    Args:
        sweep: The sweep.
        search: The trials of the search.
        started: When the sweep began, in seconds since 1970.
        pictures: The files of the folder.
        result: The result, if the sweep has ended or was stopped.
        error: Why the sweep has failed, if it has.
    """
    base = sweep.base
    return {
        "run_uid": sweep.uid,
        "experiment": base.experiment,
        "run_name": sweep.name,
        "started": started,
        "tags": {
            KIND: SWEEP,
            "algo": base.algo,
            "env_id": base.env_id,
            "mlflow.user": get_user(),
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": "rl-training sweep",
        },
        "params": flatten(redact(sweep.settings.model_dump(mode="json", exclude_none=True))),
        "metrics": [*list_metrics(search, sweep.settings.direction, result), *_list_final_metrics(result)],
        "note": _write_note(sweep, search, pictures, result, error),
        "status": _find_status(result, error),
        "winner": _find_winning_run(result),
    }


def _find_status(result: SweepResult | None, error: str | None) -> Status:
    if error is not None:
        return "FAILED"
    if result is None:
        return "RUNNING"
    return "FINISHED" if result.finished else "KILLED"


def list_metrics(trials: Sequence[Trial], direction: Direction, result: SweepResult | None) -> Iterator[Point]:
    """Yields the score of each trial and the best complete one so far; the step is the number of the trial.

    A paused trial has no final score until the search is complete, and later trials wait for it: MLflow keeps the
    points that it has.
    """
    finished = result is not None and result.finished
    for trial, (number, best) in zip(trials, track_best(trials, direction), strict=True):
        if trial.state == "paused" and not finished:
            return
        if trial.score is not None:
            yield _make_point("sweep/score", number, trial.score)
        if best is not None:
            yield _make_point("sweep/best_score", number, best)


def _list_final_metrics(result: SweepResult | None) -> Iterator[Point]:
    if result is None or not result.finished:
        return
    if result.aggregate is not None:
        yield from _list_summary("aggregate", result.aggregate)
    if (winner := result.winner) is None:
        return
    if winner.search_score is not None:
        yield _make_point("sweep/winner_score", 0, winner.search_score)
    if winner.improvement is not None:
        yield _make_point("sweep/probability_of_improvement", 0, winner.improvement.value)
    base = next((point for point in result.confirmed if point.is_base), None)
    for name, point in (("confirmed", winner), ("base", base)):
        if point is not None and point.summary is not None:
            yield from _list_summary(name, point.summary)


def _list_summary(name: str, summary: Any) -> Iterator[Point]:
    yield _make_point(f"sweep/{name}_iqm", 0, summary["iqm"])
    yield _make_point(f"sweep/{name}_mean", 0, summary["mean"])
    if summary["iqm_interval"] is not None:
        yield _make_point(f"sweep/{name}_iqm_low", 0, summary["iqm_interval"][0])
        yield _make_point(f"sweep/{name}_iqm_high", 0, summary["iqm_interval"][1])


def _make_point(name: str, step: int, value: float) -> Point:
    return {"name": name, "step": step, "value": value}


def _find_winning_run(result: SweepResult | None) -> str | None:
    """Returns the MLflow run of the winner's best seed; None if there is none, or it is not tracked."""
    if result is None or result.winner is None:
        return None
    sign = 1.0 if result.direction == "maximize" else -1.0
    runs = zip(result.winner.runs, result.winner.scores, strict=True)
    return max(runs, key=lambda pair: sign * pair[1])[0].run_id


def _write_note(
    sweep: Sweep, search: Sequence[Trial], pictures: Sequence[str], result: SweepResult | None, error: str | None
) -> str:
    """Returns the text of the page; its first paragraph is the same as long as the sweep exists."""
    settings, base = sweep.settings, sweep.base
    parts = [
        f"**Sweep** of **{base.algo}** on **{base.env_id}**: {settings.method.name}, {base.total_timesteps:,} steps.",
        *(
            f"![{name}](get-artifact?path={name}&run_uuid={RUN_ID})"
            for name in (HISTORY, COORDINATES, IMPORTANCE)
            if name in pictures
        ),
        _write_state(search, result, error),
        *_write_confirmed(result),
        _write_best(sweep, search),
        "All trials are in `trials.json` and `trials.csv` among the artifacts; their runs are nested below this one.",
    ]
    return "\n\n".join(filter(None, parts))


def _write_state(search: Sequence[Trial], result: SweepResult | None, error: str | None) -> str:
    done = count_states(search)
    if error is not None:
        return f"**Failed**: {done}. {_quote(error)}"
    if result is None:
        return f"**Running**: {done} so far."
    if result.finished:
        return f"**Finished**: {done}."
    return f"**Stopped**: {done} so far. The same command continues it: `{result.continue_with or 'rl-training sweep'}`"


def _write_confirmed(result: SweepResult | None) -> Iterator[str]:
    if result is None or not result.finished:
        return
    if result.aggregate is not None:
        yield f"`{result.aggregate['metric']}`: {format_summary(result.aggregate)}."
    if result.confirmed:
        lines = [f"- {name_point(point)}: {describe_point(point)}" for point in result.confirmed]
        yield (
            f"Trained again on seeds that the search has not used, interquartile mean of `{result.confirmed_metric}` "
            f"with its 95 % interval:\n\n" + "\n".join(lines)
        )
    yield from (f"**{line[:1].upper()}{line[1:]}**" for line in explain_winner(result))
    if result.winner_params is not None:
        yield "Train with these settings: `rl-training train --config winner.yaml` (among the artifacts)."


def _write_best(sweep: Sweep, search: Sequence[Trial]) -> str:
    ranked = rank_trials(search, sweep.settings.direction)[:SHOWN_TRIALS]
    if not ranked:
        return ""
    lines = [f"- {_link(trial)}: {trial.score:,.5g}, `{_quote(format_params(trial.params))}`" for trial in ranked]
    return f"The best of the search by `{sweep.settings.metric}`:\n\n" + "\n".join(lines)


def _link(trial: Trial) -> str:
    name, run_id = f"trial {trial.number}", trial.runs[0].run_id if trial.runs else None
    return name if run_id is None else f"[{name}]({make_run_fragment(EXPERIMENT_ID, run_id)})"


def _quote(text: str) -> str:
    return text.replace("`", "'")
