"""A checkpoint as a logged model of MLflow's, so that its Models tab ranks a run's checkpoints by their evaluation.

One model a checkpoint, with its policy in it, found by its run and the checkpoint's name in a tag. Whoever comes again,
after a lost reply, a restart, or from another machine, finds what there is and adds what is missing.
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
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.run_layout import MODEL_QUEUE, STEP
from rl_training.runtime.checkpoint import Checkpoint, checkpoint_name, open_checkpoint
from rl_training.system.durable_files import make_directory, move_into_place, sync_directory
from rl_training.tracking.checkpoint_sources import CHECKPOINT_TAG
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.mlflow_store import no_resend, sync_artifacts
from rl_training.tracking.pyfunc import save_model
from rl_training.tracking.record_schemas import NamedVersion
from rl_training.tracking.shipping.metrics_reader import Point
from rl_training.tracking.version_files import SERVED

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

RANKED_BY = "eval/return_mean"
"""The metric that is put on a checkpoint's model."""

POLICY_SHA256 = "policy_sha256"
REGISTERED = "mlflow.modelVersions"
"""Tags of a model: its policy, and MLflow's own, which names the registered versions that are made of it."""

_ILLEGAL = re.compile(r"[/:.%\"']")
"""What MLflow refuses in a model's name."""


def queue_model(run_dir: Path, staged: Path) -> None:
    """Keeps what a model needs of a checkpoint that was sent, since training may prune it at any time.

    Args:
        run_dir: The run's directory.
        staged: A copy of the checkpoint, made of links, that is the caller's own; it is moved.
    """
    for path in staged.iterdir():
        if path.name not in SERVED:
            path.unlink()
    queued = run_dir / MODEL_QUEUE / staged.name
    shutil.rmtree(queued, ignore_errors=True)
    make_directory(queued.parent)
    sync_directory(staged)
    move_into_place(staged, queued)  # before it is on record that the checkpoint was sent


def list_queued_models(run_dir: Path) -> list[Path]:
    """Returns what is queued, the oldest checkpoint first."""
    return sorted((run_dir / MODEL_QUEUE).glob(f"{STEP}*"))


def send_model(
    client: MlflowClient, run_id: str, queued: Path, evaluation: Point | None, dataset: Mapping[str, str]
) -> None:
    """Makes the model of a queued checkpoint, or adds what is missing of it, and takes it from the queue.

    Args:
        client: MLflow's client.
        run_id: The checkpoint's run.
        queued: One of `list_queued_models`.
        evaluation: The run's point of `RANKED_BY` at the checkpoint's step, where there is one.
        dataset: What it was evaluated on: the run's environment, as its description has it.
    """
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "model"
        checkpoint = _build(queued, built)
        if checkpoint is not None:
            model = get_or_create_logged_model(client, run_id, checkpoint, built)
            if evaluation is not None and _taken_after(checkpoint, evaluation):
                _rank(client, run_id, model, evaluation, dataset)
    shutil.rmtree(queued)
    with suppress(OSError):  # others are queued
        queued.parent.rmdir()


def get_or_create_logged_model(client: MlflowClient, run_id: str, checkpoint: Checkpoint, built: Path) -> LoggedModel:
    """Returns the logged model of a run's checkpoint, whole; it is made where there is none.

    Args:
        client: MLflow's client.
        run_id: The run; one that was deleted has its models all the same.
        checkpoint: Its policy at least.
        built: The model's files, of `save_model`.
    """
    run = client.get_run(run_id)
    model = _find(client, run, checkpoint) or _create(client, run, checkpoint)
    if model.status != "READY":
        client.log_model_artifacts(model.model_id, str(built))
        files = [path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()]
        sync_artifacts(model.artifact_location, files)
        client.finalize_logged_model(model.model_id, "READY")
    _name_as_output(client, run, model, checkpoint.num_timesteps)
    return model


def link_version(client: MlflowClient, model: LoggedModel, version: ModelVersion) -> None:
    """Names a registered version on the model that it is made of, as an MLflow server does; a file's store does not."""
    tag = client.get_logged_model(model.model_id).tags.get(REGISTERED, "[]")
    named = parse_json(tag, f"the tag {REGISTERED} of the logged model {model.model_id}", list[NamedVersion])
    if (version.name, version.version) not in [(one["name"], str(one["version"])) for one in named]:
        one = {"name": version.name, "version": int(version.version)}
        client.set_logged_model_tags(model.model_id, {REGISTERED: json.dumps([*named, one])})


def get_evaluations(client: MlflowClient, run: Run) -> dict[int, Point]:
    """Returns the points of `RANKED_BY` that MLflow has of a run, by step."""
    if RANKED_BY not in run.data.metrics:
        return {}
    history = client.get_metric_history(run.info.run_id, RANKED_BY)
    return {metric.step: Point(RANKED_BY, metric.value, metric.timestamp, metric.step) for metric in history}


def _build(queued: Path, built: Path) -> Checkpoint | None:
    try:
        checkpoint = open_checkpoint(queued, policy_only=True)
        save_model(checkpoint, built)
        return checkpoint
    except Exception as error:  # a damaged file, or an algorithm that is not installed here; trying again is no help
        logger.warning("checkpoint %s is in MLflow without a model: %s", queued.name, error)
        return None


def _taken_after(checkpoint: Checkpoint, evaluation: Point) -> bool:
    """Whether the evaluation was of this policy: one that came later was not, where the stop came within an update."""
    return evaluation.timestamp // 1000 <= datetime.fromisoformat(checkpoint.manifest.created).timestamp()


def _rank(client: MlflowClient, run_id: str, model: LoggedModel, evaluation: Point, dataset: Mapping[str, str]) -> None:
    """Puts an evaluation on a model: the run's own point, with its own time, so that the run has it once."""
    from mlflow.entities import Metric

    metric = Metric(
        **asdict(evaluation),
        model_id=model.model_id,
        dataset_name=dataset["name"],
        dataset_digest=dataset["digest"],
    )
    client.log_batch(run_id, metrics=[metric])


def _find(client: MlflowClient, run: Run, checkpoint: Checkpoint) -> LoggedModel | None:
    """Returns the oldest model of the checkpoint; others go.

    A younger one was made by a request that was late. One of another policy is of a checkpoint that this one has
    replaced; it stays where it is registered.
    """
    name = checkpoint_name(checkpoint.num_timesteps)
    wanted = f"source_run_id = '{run.info.run_id}' AND tags.{CHECKPOINT_TAG} = '{name}'"
    found = client.search_logged_models([run.info.experiment_id], wanted)
    same = [model for model in found if model.tags.get(POLICY_SHA256) == checkpoint.policy_sha256]
    kept = min(same, key=lambda model: (model.creation_timestamp, model.model_id), default=None)
    others = [model for model in found if model is not kept and REGISTERED not in model.tags]
    if others:
        # A registration that was killed may not have named its version on the model yet.
        versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
        sources = {version.source for version in versions}
        for model in others:
            if model.artifact_location not in sources:
                client.delete_logged_model(model.model_id)
    return kept


def _create(client: MlflowClient, run: Run, checkpoint: Checkpoint) -> LoggedModel:
    from mlflow.exceptions import MlflowException

    name = _ILLEGAL.sub("-", f"step {checkpoint.num_timesteps:,} of {run.info.run_name}")
    tags = {
        CHECKPOINT_TAG: checkpoint_name(checkpoint.num_timesteps),
        POLICY_SHA256: checkpoint.policy_sha256,
        "run_uid": checkpoint.run_uid,
        "num_timesteps": str(checkpoint.num_timesteps),
        "algo": checkpoint.algorithm,
    }
    try:
        with no_resend():
            client.create_logged_model(
                run.info.experiment_id, name=name, source_run_id=run.info.run_id, tags=tags, model_type="policy"
            )
    except MlflowException:
        model = _find(client, run, checkpoint)  # a lost reply
        if model is None:
            raise
        return model
    model = _find(client, run, checkpoint)  # where two made one at the same time, both take the older
    assert model is not None
    return model


def _name_as_output(client: MlflowClient, run: Run, model: LoggedModel, step: int) -> None:
    """Names the model among the run's outputs, at its step, once: MLflow refuses a second time."""
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    def is_named(run: Run) -> bool:
        outputs = run.outputs.model_outputs if run.outputs is not None else []
        return any(output.model_id == model.model_id for output in outputs)

    if is_named(run) or run.info.lifecycle_stage != "active":
        return
    try:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step)])
    except MlflowException:
        if not is_named(client.get_run(run.info.run_id)):
            raise
