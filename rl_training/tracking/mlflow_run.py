"""The MLflow run of a training run: finds or creates it by its `run_uid`, describes it, and sets its status."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.errors import TrackingError, UserError, printable
from rl_training.runs.health_warnings import HEALTH, read_health_warnings
from rl_training.runtime.fine_tuning import CarriedOver
from rl_training.runtime.inexact_resumes import INEXACT, LOST_BEST
from rl_training.system.programs import program
from rl_training.tracking.mlflow_links import get_ui_hint, get_ui_url
from rl_training.tracking.mlflow_names import (
    FORKED_FROM,
    KIND,
    MAX_TAG,
    SWEEP,
    TRAINING_KINDS,
    WINNER,
    make_legal_name,
    shorten,
)
from rl_training.tracking.mlflow_store import (
    NOTE,
    UNKNOWN_CODES,
    connect,
    create_or_find,
    get_or_create_experiment,
    resolve_tracking_uri,
)
from rl_training.tracking.run_description import BEGINNING

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

RUN_UID = "run_uid"
"""Tag that identifies a training run in every store."""

EXPERIMENT_NOTE = (
    "Training runs of `rl_training`. To compare them, choose the chart view: `eval/return_mean` is the greedy policy "
    "on the same episodes each time, and `heldout/return_mean` the final score. The tag `rl_training.kind` is "
    "`training`, `fork`, `fine-tuning` or `retraining`. A run's page says what can be done with it next."
)
"""The description of an experiment with training runs."""

RUN_ID = re.compile(r"[0-9a-f]{32}")
"""The form of an MLflow run id and of a `run_uid`."""

LOST_BEST_TAG = "best.lost"
"""Tag with the best checkpoints that were missing when the run was resumed, as JSON."""

INEXACT_TAG = "resume.inexact"
"""Tag with the resumes that were not exact, as JSON."""

END_TAGS = ("stop_reason", "error")
"""Tags with the way a run ended, named as in `status.json`."""


class RunDeleted(TrackingError):
    """The run was deleted in MLflow."""


@dataclass(frozen=True)
class RunAddress:
    """The place of a run in MLflow."""

    run_id: str
    experiment_id: str
    ui: str


def find_or_create_run(
    client: MlflowClient, uri: str, description: Mapping[str, Any], known_run_id: str | None, new_run: bool
) -> RunAddress:
    """Returns the run with the description's `run_uid`; creates it if it does not exist.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        description: The content of `tracking.json`.
        known_run_id: The run's id if the run was in this store before, else None.
        new_run: Whether to create a new run if the known run was deleted.

    Raises:
        RunDeleted: The known run was deleted and `new_run` is false.
        TrackingError: The experiment was deleted.
    """
    if known_run_id is not None:
        experiment_id = get_experiment_id(client, known_run_id)
        if experiment_id is not None:
            return RunAddress(known_run_id, experiment_id, get_ui_hint(uri, experiment_id, known_run_id))
        if not new_run:
            sync = f"{program('rl-training')} sync {shlex.quote(description['tags']['run_dir'])}"
            raise RunDeleted(
                f"run {known_run_id} was deleted in MLflow; restore it there, "
                f"or `{sync} --new-run` sends everything to a new run"
            )
    experiment_id = get_or_create_experiment(client, uri, description["experiment"], EXPERIMENT_NOTE)
    run_id = _find_by_uid(client, experiment_id, description["run_uid"])
    if run_id is None:
        run_id = _create_run(client, experiment_id, description)
    return RunAddress(run_id, experiment_id, get_ui_hint(uri, experiment_id, run_id))


def get_experiment_id(client: MlflowClient, run_id: str) -> str | None:
    """Returns the id of a run's experiment, or None if the run was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        info = client.get_run(run_id).info
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return str(info.experiment_id) if info.lifecycle_stage == "active" else None


def get_run_url(run_id: str) -> str | None:
    """Returns the address of a run's page, or None if no server is known that shows it or the run was deleted."""
    uri = resolve_tracking_uri()
    if get_ui_url(uri) is None:
        return None
    experiment_id = get_experiment_id(connect(uri), run_id)
    return None if experiment_id is None else get_ui_hint(uri, experiment_id, run_id)


def _create_run(client: MlflowClient, experiment_id: str, description: Mapping[str, Any]) -> str:
    """Creates the run and returns its id; if MLflow's reply is lost, finds the run by its tag."""
    run_uid = description["run_uid"]

    def create() -> str:
        started, name = round(description["started"] * 1000), description["run_name"]
        run = client.create_run(experiment_id, start_time=started, run_name=name, tags={RUN_UID: run_uid})
        return str(run.info.run_id)

    return create_or_find(create, lambda: _find_by_uid(client, experiment_id, run_uid))


def _find_by_uid(client: MlflowClient, experiment_id: str, run_uid: str) -> str | None:
    """Returns the id of the oldest run with the tag; deletes younger runs, which only a lost reply can have made."""
    runs = client.search_runs([experiment_id], f"tags.{RUN_UID} = '{run_uid}'")
    if not runs:
        return None
    first, *others = sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))
    for run in others:
        client.delete_run(run.info.run_id)
    return str(first.info.run_id)


def find_run(client: MlflowClient, identity: str) -> Run | None:
    """Returns the run that has an MLflow run id or a `run_uid`, or None if there is no such run.

    Args:
        client: MLflow's client.
        identity: Either of the two ids, which look alike: 32 hexadecimal digits.
    """
    from mlflow.exceptions import MlflowException

    if not RUN_ID.fullmatch(identity):
        return None
    try:
        return client.get_run(identity)
    except MlflowException as error:
        if error.error_code not in UNKNOWN_CODES:
            raise
    run_id = find_run_id(client, identity)
    return None if run_id is None else client.get_run(run_id)


def is_training_run(run: Run) -> bool:
    """Returns whether a run trains something: sweeps, comparisons and monitoring have runs of their own."""
    tags = run.data.tags
    return RUN_UID in tags and tags.get(KIND, TRAINING_KINDS[0]) in TRAINING_KINDS


def get_training_run(client: MlflowClient, run_id: str) -> Run:
    """Returns the run with this id.

    Raises:
        UserError: The run trains nothing, because it is the page of a sweep, for example.
    """
    run = client.get_run(run_id)
    kind = run.data.tags.get(KIND, TRAINING_KINDS[0])
    if kind in TRAINING_KINDS:
        return run
    if kind != SWEEP:
        raise UserError(f"run {run_id} is a {printable(kind)} run; expected a training run")
    winner = run.data.tags.get(WINNER)
    known = f"its winner is run {printable(winner)}" if winner else "it has no winner yet"
    raise UserError(f"run {run_id} is a sweep; {known}; expected a training run")


def find_run_id(client: MlflowClient, run_uid: str) -> str | None:
    """Returns the id of a training run's MLflow run in any experiment, or None if there is no such run."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.{RUN_UID} = '{run_uid}'", max_results=1, order_by=["start_time ASC"])
    return str(runs[0].info.run_id) if runs else None


def log_description(client: MlflowClient, run: Run, description: Mapping[str, Any], *, first: bool) -> None:
    """Logs the run's parameters, its tags, and the environment as a dataset; logging them again changes nothing.

    MLflow does not allow a parameter to change. If one differs (the run directory of a run that is resumed elsewhere,
    for example), the run keeps the first value, and the tag `params_changed` has the new value.

    Args:
        client: MLflow's client.
        run: The run.
        description: The content of `tracking.json`.
        first: Whether this is the run's first attempt. The tags that say who began the run are its own.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    there = run.data.params
    params = description["params"]
    kept = {NOTE} if NOTE in run.data.tags else set()
    if not first:
        kept |= set(BEGINNING)
    tags = {key: value for key, value in description["tags"].items() if key not in kept}
    changed = {key: value for key, value in params.items() if there.get(key, value) != value}
    if changed:
        tags["params_changed"] = json.dumps(changed)
    new = [Param(key, value) for key, value in params.items() if key not in there]
    client.log_batch(
        run.info.run_id,
        params=new,
        tags=[RunTag(make_legal_name(key), shorten(value, MAX_TAG)) for key, value in tags.items()],
    )
    dataset = Dataset(**description["dataset"])
    client.log_inputs(run.info.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
    if description["forked_from"] is not None:
        _link_fork(client, run.info.run_id, description)


def _link_fork(client: MlflowClient, run_id: str, description: Mapping[str, Any]) -> None:
    """Links a fork and the run that it comes from, in both directions if MLflow has that run.

    A fine-tuned run also gets a tag with the parts of the checkpoint that it took over, and a fork of population-based
    training one with its lineage.
    """
    origin = description["forked_from"]
    tags = {
        FORKED_FROM: origin["run_uid"],
        "forked_from.num_timesteps": str(origin["num_timesteps"]),
        "forked_from.differences": "\n".join(origin["differences"]) or "none",
    }
    kind, fine_tuning = "fork", origin.get("fine_tuning")
    if fine_tuning is not None:
        kind, tags["forked_from.fine_tuning"] = "fine_tuned", str(CarriedOver(**fine_tuning))
    if (lineage := origin.get("lineage")) is not None:
        tags["forked_from.lineage"] = json.dumps(lineage)
    if (parent := find_run_id(client, origin["run_uid"])) is not None:
        tags["forked_from.run_id"] = parent
        client.set_tag(parent, f"{kind}.{description['run_uid']}", run_id)
    for key, value in tags.items():
        client.set_tag(run_id, key, shorten(value, MAX_TAG))


def tag_doubts(client: MlflowClient, run_id: str, metadata: Mapping[str, Any]) -> None:
    """Tags the run with the inexact resumes, lost best checkpoints and bad training that `metadata.json` lists, if any.

    If all warnings about training have been withdrawn, the tag is `none`.
    """
    if HEALTH in metadata:
        lines = [f"{warning.kind}: {warning}" for warning in read_health_warnings(metadata)]
        client.set_tag(run_id, HEALTH, shorten("\n".join(lines) or "none", MAX_TAG))
    if lost := metadata.get(LOST_BEST):
        client.set_tag(run_id, LOST_BEST_TAG, shorten(json.dumps(lost), MAX_TAG))
    if resumes := metadata.get(INEXACT):
        client.set_tag(run_id, INEXACT_TAG, shorten(json.dumps(resumes), MAX_TAG))


def get_latest_steps(client: MlflowClient, run: Run) -> dict[str, int]:
    """Returns the last step of each of the run's metrics in MLflow."""
    run_id = run.info.run_id
    return {key: max(metric.step for metric in client.get_metric_history(run_id, key)) for key in run.data.metrics}


def set_status(client: MlflowClient, run_id: str, status: Mapping[str, Any]) -> None:
    """Ends the run in MLflow with the status of its training, the content of `status.json`."""
    for tag in END_TAGS:
        if status.get(tag):
            client.set_tag(run_id, tag, shorten(status[tag], MAX_TAG))
    client.set_terminated(run_id, status["status"], end_time=round(status["time"] * 1000))


def reopen(client: MlflowClient, run: Run) -> None:
    """Sets a resumed run to RUNNING and removes the tags that its earlier end left."""
    for tag in END_TAGS:
        if tag in run.data.tags:
            client.delete_tag(run.info.run_id, tag)
    if run.info.status != "RUNNING":
        client.update_run(run.info.run_id, status="RUNNING")
