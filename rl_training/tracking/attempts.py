"""The attempts at a run: which training process is its newest, on whatever machine, as tags on the run in MLflow.

A process that was thought dead and wakes on another machine finds here that the run is no longer its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rl_training.errors import NoProgress, TrackingError
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.record_schemas import AttemptForm

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

ATTEMPT, ATTEMPTS = "attempt", "attempts"
"""Tags: how many training processes the run has had, and the newest of them as JSON."""

KEPT = 20
"""Attempts that are kept by name, the newest ones."""

SAME_STEP = 3
"""Attempts in a row that may begin at one step: where none of them came to a new checkpoint, the next would not."""


class AttemptSuperseded(TrackingError):
    """Another training process has gone on with the run since."""


@dataclass(frozen=True)
class Attempt:
    """One training process of a run."""

    from_step: int
    """Where it began."""
    host: str
    pid: int
    created: float
    """When the process began, by its machine's clock."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def get_attempt(description: Mapping[str, Any]) -> Attempt:
    """Returns the attempt that a run's `tracking.json` is of."""
    process = description["process"]
    return Attempt(description["from_step"], process["host"], process["pid"], process["created"])


def get_attempts(run: Run) -> list[Attempt]:
    """Returns the newest attempts at a run in MLflow, the oldest of them first."""
    return parse_attempts(run.data.tags.get(ATTEMPTS, "[]"), f"the tag {ATTEMPTS} of run {run.info.run_id}")


def parse_attempts(text: str, what: str) -> list[Attempt]:
    """Returns the attempts that a tag names.

    Raises:
        TrackingError: `what` is damaged.
    """
    return [Attempt(**attempt) for attempt in parse_json(text, what, list[AttemptForm])]


def begin_attempt(client: MlflowClient, run: Run, attempt: Attempt, *, training: bool) -> None:
    """Makes an attempt the newest one at a run: whoever had the run before sends nothing more to it.

    Args:
        client: MLflow's client.
        run: The run.
        attempt: A training process.
        training: Whether it trains now. One that has ended (offline, say) is the newest if it began later than others.

    Raises:
        AttemptSuperseded: Another one is newer.
    """
    attempts = get_attempts(run)
    newer = attempts and attempts[-1] != attempt
    if newer and (attempt in attempts or (not training and attempts[-1].created > attempt.created)):
        raise _elsewhere(run.info.run_id, attempts[-1])
    if attempt in attempts:
        return
    client.set_tag(run.info.run_id, ATTEMPTS, json.dumps([asdict(one) for one in [*attempts, attempt][-KEPT:]]))
    client.set_tag(run.info.run_id, ATTEMPT, str(int(run.data.tags.get(ATTEMPT, 0)) + 1))


def require_newest(client: MlflowClient, run_id: str, attempt: Attempt) -> None:
    """Checks that no other process has gone on with a run since.

    Raises:
        AttemptSuperseded: One has; names it.
    """
    attempts = get_attempts(client.get_run(run_id))
    if attempts and attempts[-1] != attempt:
        raise _elsewhere(run_id, attempts[-1])


def _elsewhere(run_id: str, newest: Attempt) -> AttemptSuperseded:
    return AttemptSuperseded(
        f"run {run_id} has gone on from step {newest.from_step:,} in {newest}; nothing is sent from here"
    )


def find_run_by_tag(tag: str, value: str) -> Run | None:
    """Returns the newest run in MLflow that has a tag with a value; None where there is none.

    Raises:
        TrackingError: MLflow can't be reached.
    """
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, f"runs with the tag {tag}"):
        client = connect(uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments, f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time DESC"])
        return runs[0] if runs else None


def require_progress(attempts: list[Attempt], step: int) -> None:
    """Refuses another attempt from a step from which the last ones came to no new checkpoint.

    Raises:
        NoProgress: Says how many there were.
    """
    last = attempts[-SAME_STEP:]
    if len(last) == SAME_STEP and all(attempt.from_step == step for attempt in last):
        raise NoProgress(
            f"the last {SAME_STEP} attempts at this run began at step {step:,} and came to no new checkpoint, so there "
            f"is no other; once what ended them is put right, go on with rl-training resume or the resume-flow"
        )
