"""Makes a logged model of each checkpoint, so that MLflow's Models tab ranks a run's checkpoints by evaluation.

A logged model contains the checkpoint's policy and is found by its run and a tag with the checkpoint's name. After a
lost reply, after a restart or from another machine, the existing model is found and completed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.run_layout import MODEL_QUEUE, STEP
from rl_training.runtime.checkpoint import Checkpoint, checkpoint_name, open_checkpoint
from rl_training.system.durable_files import make_directory, move_into_place, sync_directory
from rl_training.tracking.checkpoint_sources import CHECKPOINT_TAG
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.mlflow_store import create_or_find
from rl_training.tracking.pyfunc import save_model
from rl_training.tracking.record_schemas import NamedVersion
from rl_training.tracking.shipping.artifact_files import sync_artifacts
from rl_training.tracking.shipping.metrics_reader import Point
from rl_training.tracking.version_files import SERVED

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

RANKED_BY = "eval/return_mean"
"""The metric that is logged for a checkpoint's model."""

POLICY_SHA256 = "policy_sha256"
REGISTERED = "mlflow.modelVersions"
"""Tags of a model: the hash of its policy, and MLflow's own tag with the versions registered from the model."""

_ILLEGAL = re.compile(r"[/:.%\"']")
"""Characters that MLflow does not allow in a model's name."""


def queue_model(run_dir: Path, staged: Path) -> None:
    """Keeps the files of an uploaded checkpoint that its model needs, because training may prune it at any time.

    Args:
        run_dir: The run's directory.
        staged: A copy of the checkpoint, made of links; the copy is moved.
    """
    for path in staged.iterdir():
        if path.name not in SERVED:
            path.unlink()
    queued = run_dir / MODEL_QUEUE / staged.name
    shutil.rmtree(queued, ignore_errors=True)
    make_directory(queued.parent)
    sync_directory(staged)
    move_into_place(staged, queued)  # before the checkpoint is recorded as sent


def list_queued_models(run_dir: Path) -> list[Path]:
    """Returns the queued checkpoints, the oldest first."""
    return sorted((run_dir / MODEL_QUEUE).glob(f"{STEP}*"))


def send_model(
    client: MlflowClient, run_id: str, queued: Path, evaluation: Point | None, dataset: Mapping[str, str]
) -> None:
    """Creates or completes the model of a queued checkpoint, and removes the checkpoint from the queue.

    Args:
        client: MLflow's client.
        run_id: The checkpoint's run.
        queued: One of `list_queued_models`.
        evaluation: The run's point of `RANKED_BY` at the checkpoint's step, if there is one.
        dataset: The run's environment, as in its description.
    """
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "model"
        checkpoint = _build(queued, built)
        if checkpoint is not None:
            model = get_or_create_logged_model(client, run_id, checkpoint, built)
            if evaluation is not None and _is_evaluation_of(checkpoint, evaluation):
                _rank(client, run_id, model, evaluation, dataset)
    shutil.rmtree(queued)
    with suppress(OSError):  # the queue is not empty
        queued.parent.rmdir()


def get_or_create_logged_model(client: MlflowClient, run_id: str, checkpoint: Checkpoint, built: Path) -> LoggedModel:
    """Returns the complete logged model of a run's checkpoint; creates it if it does not exist.

    Args:
        client: MLflow's client.
        run_id: The run; a deleted run keeps its models.
        checkpoint: The checkpoint, of which only the policy is needed.
        built: Directory with the model's files, from `save_model`.
    """
    run = client.get_run(run_id)
    model = _find(client, run, checkpoint) or _create(client, run, checkpoint)
    if model.status != "READY":
        client.log_model_artifacts(model.model_id, str(built))
        files = [path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()]
        sync_artifacts(model.artifact_location, files)
        client.finalize_logged_model(model.model_id, "READY")
    _log_as_output(client, run, model, checkpoint.num_timesteps)
    return model


def link_version(client: MlflowClient, model: LoggedModel, version: ModelVersion) -> None:
    """Adds a registered version to the tag of its model, as an MLflow server does and an SQLite store does not."""
    tag = client.get_logged_model(model.model_id).tags.get(REGISTERED, "[]")
    named = parse_json(tag, f"the tag {REGISTERED} of the logged model {model.model_id}", list[NamedVersion])
    if (version.name, version.version) not in [(one["name"], str(one["version"])) for one in named]:
        one = {"name": version.name, "version": int(version.version)}
        client.set_logged_model_tags(model.model_id, {REGISTERED: json.dumps([*named, one])})


def get_evaluations(client: MlflowClient, run: Run) -> dict[int, Point]:
    """Returns the run's points of `RANKED_BY` in MLflow, by step."""
    if RANKED_BY not in run.data.metrics:
        return {}
    history = client.get_metric_history(run.info.run_id, RANKED_BY)
    return {metric.step: Point(RANKED_BY, metric.value, metric.timestamp, metric.step) for metric in history}


def _build(queued: Path, built: Path) -> Checkpoint | None:
    try:
        checkpoint = open_checkpoint(queued, policy_only=True)
        save_model(checkpoint, built)
        return checkpoint
    except Exception as error:  # a damaged file, or an algorithm that is not installed here: trying again is useless
        logger.warning("checkpoint %s is in MLflow without a model: %s", queued.name, error)
        return None


def _is_evaluation_of(checkpoint: Checkpoint, evaluation: Point) -> bool:
    """Returns whether the evaluation is not later than the checkpoint; a stop within an update can make it later."""
    return evaluation.timestamp // 1000 <= datetime.fromisoformat(checkpoint.manifest.created).timestamp()


def _rank(client: MlflowClient, run_id: str, model: LoggedModel, evaluation: Point, dataset: Mapping[str, str]) -> None:
    """Logs an evaluation for a model: the run's own point with its own time, so that the run does not get a second."""
    from mlflow.entities import Metric

    metric = Metric(
        **asdict(evaluation),
        model_id=model.model_id,
        dataset_name=dataset["name"],
        dataset_digest=dataset["digest"],
    )
    client.log_batch(run_id, metrics=[metric])


def _find(client: MlflowClient, run: Run, checkpoint: Checkpoint) -> LoggedModel | None:
    """Returns the oldest model of the checkpoint, and deletes other models with its name.

    A younger model was created by a delayed request. A model with another policy belongs to a checkpoint that this
    checkpoint has replaced; it is only deleted if no version is registered from it.
    """
    name = checkpoint_name(checkpoint.num_timesteps)
    wanted = f"source_run_id = '{run.info.run_id}' AND tags.{CHECKPOINT_TAG} = '{name}'"
    found = client.search_logged_models([run.info.experiment_id], wanted)
    same = [model for model in found if model.tags.get(POLICY_SHA256) == checkpoint.policy_sha256]
    kept = min(same, key=lambda model: (model.creation_timestamp, model.model_id), default=None)
    others = [model for model in found if model is not kept and REGISTERED not in model.tags]
    if others:
        # A registration that was killed may not have tagged the model with its version yet.
        versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
        sources = {version.source for version in versions}
        for model in others:
            if model.artifact_location not in sources:
                client.delete_logged_model(model.model_id)
    return kept


def _create(client: MlflowClient, run: Run, checkpoint: Checkpoint) -> LoggedModel:
    name = _ILLEGAL.sub("-", f"step {checkpoint.num_timesteps:,} of {run.info.run_name}")
    tags = {
        CHECKPOINT_TAG: checkpoint_name(checkpoint.num_timesteps),
        POLICY_SHA256: checkpoint.policy_sha256,
        "run_uid": checkpoint.run_uid,
        "num_timesteps": str(checkpoint.num_timesteps),
        "algo": checkpoint.algorithm,
    }
    create = partial(client.create_logged_model, run.info.experiment_id, name=name, source_run_id=run.info.run_id)
    find = partial(_find, client, run, checkpoint)
    create_or_find(partial(create, tags=tags, model_type="policy"), find)
    model = find()  # if two processes created models at the same time, both take the older
    assert model is not None
    return model


def _log_as_output(client: MlflowClient, run: Run, model: LoggedModel, step: int) -> None:
    """Logs the model as an output of the run at its step, unless it is one; MLflow refuses a second time."""
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    def is_logged(run: Run) -> bool:
        outputs = run.outputs.model_outputs if run.outputs is not None else []
        return any(output.model_id == model.model_id for output in outputs)

    if is_logged(run) or run.info.lifecycle_stage != "active":
        return
    try:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step)])
    except MlflowException:
        if not is_logged(client.get_run(run.info.run_id)):
            raise
