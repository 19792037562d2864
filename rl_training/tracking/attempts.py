"""Records the attempts at a run, that is, its training processes on all machines, in tags of the MLflow run.

A process that was thought dead, and continues on another machine, finds out here that the run is no longer its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rl_training.errors import NoProgress, TrackingError
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.mlflow_names import FLOW_RUN, MAX_TAG, make_legal_name
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.record_schemas import AttemptForm

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

ATTEMPT, ATTEMPTS = "attempt", "attempts"
"""Tags: the number of training processes that the run has had, and the newest of them as JSON."""

OF_FLOW_RUN = "prefect.flow_run."
"""Prefix of a tag for each flow run that has trained the run; the value is its newest attempt, such as `attempt 2`."""

KEPT = 20
"""Number of attempts that the tag lists: the first, and the newest."""

LONGEST_COMMAND = 120
"""Number of characters of a command that the tag keeps."""

SAME_STEP = 3
"""Number of attempts in a row that may begin at the same step, that is, without a new checkpoint."""


class AttemptSuperseded(TrackingError):
    """Another training process has resumed the run."""


@dataclass(frozen=True)
class Attempt:
    """One training process of a run."""

    from_step: int
    """The step at which the process began to train."""
    host: str
    pid: int
    created: float
    """Start time of the process by its machine's clock, in seconds since 1970."""
    started_by: str = field(default="", compare=False)
    """The deployment or command that started the process; empty for an attempt by an earlier version."""
    flow_run: str = field(default="", compare=False)
    """The id of its Prefect flow run; empty if there is none."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def get_attempt(description: Mapping[str, Any]) -> Attempt:
    """Returns the attempt that wrote a run's `tracking.json`."""
    process = description["process"]
    return Attempt(
        description["from_step"],
        process["host"],
        process["pid"],
        process["created"],
        description.get("started_by", "")[:LONGEST_COMMAND],
        description["tags"].get(FLOW_RUN, ""),
    )


def get_attempts(run: Run) -> list[Attempt]:
    """Returns the attempts that a run in MLflow lists, the first and the newest, sorted from oldest to newest."""
    return parse_attempts(run.data.tags.get(ATTEMPTS, "[]"), f"the tag {ATTEMPTS} of run {run.info.run_id}")


def parse_attempts(text: str, what: str) -> list[Attempt]:
    """Returns the attempts that a tag lists.

    Args:
        text: The value of the tag.
        what: A name of the tag for the error message.

    Raises:
        TrackingError: The tag is damaged.
    """
    return [Attempt(**attempt) for attempt in parse_json(text, what, list[AttemptForm])]


def begin_attempt(client: MlflowClient, run: Run, attempt: Attempt, *, training: bool) -> None:
    """Makes an attempt the newest at a run, after which earlier attempts send nothing more to MLflow.

    Args:
        client: MLflow's client.
        run: The run.
        attempt: The attempt.
        training: Whether the attempt trains now. An attempt that has ended, for example an offline run, only becomes
            the newest if it began later than the others.

    Raises:
        AttemptSuperseded: Another attempt is newer.
    """
    attempts = get_attempts(run)
    newer = attempts and attempts[-1] != attempt
    if newer and (attempt in attempts or (not training and attempts[-1].created > attempt.created)):
        raise _make_superseded_error(run.info.run_id, attempts[-1])
    if attempt in attempts:
        return
    number = int(run.data.tags.get(ATTEMPT, 0)) + 1
    client.set_tag(run.info.run_id, ATTEMPTS, _write_attempts([*attempts, attempt]))
    client.set_tag(run.info.run_id, ATTEMPT, str(number))
    if attempt.flow_run:
        client.set_tag(run.info.run_id, f"{OF_FLOW_RUN}{make_legal_name(attempt.flow_run)}", f"attempt {number}")


def is_first_attempt(run: Run, attempt: Attempt) -> bool:
    """Returns whether no other attempt has begun before this one."""
    attempts = get_attempts(run)
    return not attempts or attempts[0] == attempt


def _write_attempts(attempts: list[Attempt]) -> str:
    """Returns the value of the tag: the first attempt, and as many of the newest as there is room for."""
    first, newest = attempts[:1], attempts[1:][1 - KEPT :]
    while True:
        text = json.dumps([asdict(attempt) for attempt in [*first, *newest]], ensure_ascii=False)
        if len(text) <= MAX_TAG or not newest:
            return text
        del newest[0]


def require_newest_attempt(client: MlflowClient, run_id: str, attempt: Attempt) -> None:
    """Checks that no other process has resumed a run.

    Raises:
        AttemptSuperseded: Another process has; the message names it.
    """
    attempts = get_attempts(client.get_run(run_id))
    if attempts and attempts[-1] != attempt:
        raise _make_superseded_error(run_id, attempts[-1])


def _make_superseded_error(run_id: str, newest: Attempt) -> AttemptSuperseded:
    return AttemptSuperseded(
        f"run {run_id} was resumed from step {newest.from_step:,} by {newest}; nothing is sent from here"
    )


def find_run_by_tag(tag: str, value: str) -> Run | None:
    """Returns the newest run in MLflow with a tag of the given value, or None if there is none.

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
    """Refuses another attempt from a step if the last attempts from it saved no new checkpoint.

    Args:
        attempts: The attempts so far, sorted from oldest to newest.
        step: The step at which the next attempt would begin.

    Raises:
        NoProgress: The last attempts all began at this step.
    """
    last = attempts[-SAME_STEP:]
    if len(last) == SAME_STEP and all(attempt.from_step == step for attempt in last):
        raise NoProgress(
            f"the last {SAME_STEP} attempts at this run began at step {step:,} and saved no new checkpoint, so no "
            f"other is started; fix what ended them, then continue with rl-training resume or the resume-flow"
        )
