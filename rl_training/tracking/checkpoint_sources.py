"""Finds the checkpoint that a source names: a directory, an MLflow run or a registered model."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rl_training.errors import CheckpointError, UserError, one_line
from rl_training.run_layout import CHECKPOINTS, CONFIG, REPLAY
from rl_training.runs.locks import require_free
from rl_training.runs.metadata import find_run_in_home
from rl_training.runtime.checkpoint import Checkpoint, find_checkpoint, load_trainer_state, newest_good, open_checkpoint
from rl_training.runtime.checkpoint.downloads import Download, write_download
from rl_training.runtime.checkpoint.manifest import MANIFEST, POLICY, is_shard, read_manifest
from rl_training.system.download_directories import make_download_directory
from rl_training.system.paths import require_path_text
from rl_training.tracking.mlflow_run import RUN_ID, RUN_UID, find_run, get_training_run
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.version_files import download_version_policy

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

CHECKPOINT_TAG = "checkpoint"
"""Tag of a registered version: the name of the checkpoint in its run."""

_RUNS = re.compile(r"runs:/+([^/]+)(?:/(.*))?")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_MODELS = re.compile(r"models:/+([^/@]+)(?:@([^/@]+)|/(\d+))")

Wanted = Literal["everything", "weights", "policy"]
"""The parts of a checkpoint that are needed: "everything" to resume training; "weights" to fine-tune, which needs no
replay buffer (it may take many gigabytes); "policy" to evaluate, which needs no training state either."""


class RunSource(NamedTuple):
    """An MLflow run and a folder of its artifacts."""

    run_id: str
    path: str
    """`checkpoints`, which means the newest good checkpoint, or the folder of one checkpoint."""


class ModelSource(NamedTuple):
    """A registered version, named either by alias or by number."""

    name: str
    alias: str | None
    version: str | None


def read_source(source: object) -> str:
    """Returns the text of a source: of a text, of a path, or of the result of a training, which is the run's directory.

    Raises:
        UserError: It is something else, or can be neither a path nor a name.
    """
    if not isinstance(source, str | PathLike):
        raise UserError(
            f"got a {type(source).__name__}, expected a directory, an MLflow run id, runs:/ID or models:/NAME@ALIAS, "
            f"or the result of a training"
        )
    return require_path_text(fspath(source))


def parse_source(text: str) -> RunSource | ModelSource:
    """Returns the MLflow run or registered version that a text names.

    Raises:
        UserError: The text names neither.
    """
    if (found := match_source(text)) is not None:
        return found
    raise UserError(
        f"{text!r} is no checkpoint; expected a checkpoint's or run's directory, an MLflow run id or run_uid, "
        f"runs:/ID[/checkpoints/step_...], or models:/NAME@ALIAS"
    )


def match_source(text: str) -> RunSource | ModelSource | None:
    """Returns the MLflow run or registered version that a text names, or None if it has the form of neither."""
    if (model := _MODELS.fullmatch(text)) is not None:
        return ModelSource(model[1], model[2], model[3])
    if (run := _RUNS.fullmatch(text)) is not None:
        return RunSource(run[1], (run[2] or CHECKPOINTS).rstrip("/"))
    if RUN_ID.fullmatch(text):
        return RunSource(text, CHECKPOINTS)
    return None


def resolve_source(client: MlflowClient, source: RunSource | ModelSource) -> RunSource | ModelSource | Path:
    """Returns the source with the MLflow run id of the run that it names by `run_uid`.

    A run that MLflow does not have, such as one that was trained offline, is looked for in the home of rl_training, and
    its directory is returned. A source that is found nowhere is returned as it is; MLflow's error then says so.
    """
    if isinstance(source, ModelSource):
        return source
    if (run := find_run(client, source.run_id)) is not None:
        return source._replace(run_id=run.info.run_id)
    run_dir = find_run_in_home(source.run_id) if RUN_ID.fullmatch(source.run_id) else None
    if run_dir is None or not _PATH.fullmatch(source.path):
        return source
    return run_dir if source.path == CHECKPOINTS else run_dir / source.path


def find_version(client: MlflowClient, source: ModelSource) -> ModelVersion:
    """Returns the registered version that a source names."""
    if source.alias is not None:
        return client.get_model_version_by_alias(source.name, source.alias)
    assert source.version is not None
    return client.get_model_version(source.name, source.version)


def download_checkpoint(
    source: str | PathLike[str] | Checkpoint,
    *,
    tracking_uri: str | None = None,
    wanted: Wanted = "everything",
    to_resume: bool = False,
) -> Checkpoint:
    """Returns the verified checkpoint that `source` names, and downloads it unless it is a local directory.

    Args:
        source: One of: a checkpoint, which is returned as it is; the directory of a checkpoint or run; an MLflow run
            id, a `run_uid` or `runs:/ID` (the run's newest good checkpoint by the step in its manifest, taken from the
            run directory if that has a later checkpoint than MLflow); `runs:/ID/checkpoints/step_...` (that
            checkpoint); `models:/NAME@ALIAS` or `models:/NAME/VERSION` (the checkpoint in the version's run; if it no
            longer exists, the version's own copy, which has no training state and can only be evaluated or fine-tuned).
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded store.
        wanted: The parts of the checkpoint to download and verify. A registered version has its own copy of the policy.
        to_resume: Whether the run itself is resumed. This is refused while another process trains the run, because that
            process keeps adding and removing checkpoints.

    Raises:
        AlreadyTraining: Another process trains the run that is to be resumed.
        CheckpointError: There is no good checkpoint; the message names each one that was tried.
        TrackingError: MLflow can't be reached.
        UserError: `source` is not valid, or MLflow has no such run, model or alias.
    """
    if isinstance(source, Checkpoint):
        return source
    text = read_source(source)
    if Path(text).exists():
        return _find_local(Path(text), wanted, to_resume)
    parsed = parse_source(text)
    uri = resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, text):
        client = connect(uri)
        found = resolve_source(client, parsed)
        if isinstance(found, Path):
            return _find_local(found, wanted, to_resume)
        if isinstance(found, RunSource):
            return download_run_checkpoint(client, found, wanted, to_resume)
        version = find_version(client, found)
        if wanted == "policy":
            return download_version_policy(client, uri, version)
        return _download_version_checkpoint(client, uri, version, wanted)


def _find_local(path: Path, wanted: Wanted, to_resume: bool) -> Checkpoint:
    if to_resume:
        require_free(path)
    return find_checkpoint(path, policy_only=wanted != "everything")


def _download_version_checkpoint(client: MlflowClient, uri: str, version: ModelVersion, wanted: Wanted) -> Checkpoint:
    """Returns the checkpoint in the version's run; if it no longer exists, the version's own copy."""
    from mlflow.exceptions import MlflowException

    name = version.tags.get(CHECKPOINT_TAG)
    if version.run_id and name:
        try:
            return _download(client, version.run_id, f"{CHECKPOINTS}/{name}", wanted)
        except (CheckpointError, MlflowException, OSError) as error:
            logger.warning(
                "%s version %s: the checkpoint in its run can't be used (%s); the version's own copy has no training "
                "state, so it can only be evaluated or fine-tuned",
                version.name,
                version.version,
                error,
            )
    return download_version_policy(client, uri, version)


def download_run_checkpoint(
    client: MlflowClient, source: RunSource, wanted: Wanted, to_resume: bool = False
) -> Checkpoint:
    """Returns the checkpoint that a run source names: a given checkpoint, or the newest good checkpoint of the run."""
    run_id, path = source
    run = get_training_run(client, run_id)  # before the artifacts, so that an unknown run is reported as such
    run_dir = Path(run.data.tags.get("run_dir", ""))
    skipped: list[str] = []
    if path != CHECKPOINTS:
        checkpoint = _download(client, run_id, path, wanted)
        later = [step for step, _ in _list_newest_first(client, run_id, skipped) if step > checkpoint.num_timesteps]
        write_download(checkpoint, Download(newest=not later, run_dir=run_dir))
        return checkpoint
    here, _ = newest_good(run_dir / CHECKPOINTS)
    if here is not None and here.run_uid != run.data.tags.get(RUN_UID):
        here = None
    if here is not None and to_resume:
        require_free(run_dir)
    for step, name in _list_newest_first(client, run_id, skipped):
        if here is not None and here.num_timesteps > step:
            break
        try:
            checkpoint = _download(client, run_id, f"{CHECKPOINTS}/{name}", wanted)
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        for line in skipped:
            logger.warning("skipped: %s", line)
        write_download(checkpoint, Download(newest=True, run_dir=run_dir))
        return checkpoint
    if here is not None:
        logger.info("%s is later than the checkpoints of run %s in MLflow", here.path, run_id)
        return here
    raise CheckpointError(f"run {run_id} has no good checkpoint in MLflow" + "".join(f"; {s}" for s in skipped))


def _list_newest_first(client: MlflowClient, run_id: str, skipped: list[str]) -> list[tuple[int, str]]:
    """Returns step and name of a run's checkpoints, newest first; downloads only the manifests.

    Args:
        client: MLflow's client.
        run_id: The run.
        skipped: Receives a message about each folder without a readable manifest.
    """
    found = []
    for entry in client.list_artifacts(run_id, CHECKPOINTS):
        if not entry.is_dir:
            continue
        try:
            if f"{entry.path}/{MANIFEST}" not in _list_paths(client, run_id, entry.path):
                raise CheckpointError(f"{entry.path} has no {MANIFEST}: its upload did not end")
            manifest = read_manifest(_download_manifest(client, run_id, entry.path))
            found.append((manifest.num_timesteps, Path(entry.path).name))
        except CheckpointError as error:
            skipped.append(str(error))
    return sorted(found, reverse=True)


def _download(client: MlflowClient, run_id: str, path: str, wanted: Wanted) -> Checkpoint:
    """Downloads and verifies a checkpoint; its replay shards come from the folder that all checkpoints share."""
    there = _list_paths(client, run_id, path)
    if f"{path}/{MANIFEST}" not in there:
        raise CheckpointError(f"run {run_id} has no {path} in MLflow, or its upload did not end")
    directory = _download_manifest(client, run_id, path)
    names = (CONFIG, POLICY) if wanted == "policy" else tuple(read_manifest(directory).files)
    if wanted == "weights":
        names = tuple(name for name in names if not is_shard(name))
    artifacts = [f"{REPLAY if is_shard(name) else path}/{name}" for name in names]
    if any(map(is_shard, names)):
        there |= _list_paths(client, run_id, REPLAY)
    for artifact in artifacts:
        if artifact in there:  # `open_checkpoint` reports the missing files
            client.download_artifacts(run_id, artifact, str(directory))
    address = f"runs:/{run_id}/{path}"
    with _name_address(directory, address):
        checkpoint = open_checkpoint(directory, policy_only=wanted != "everything")
        if wanted == "weights":
            load_trainer_state(checkpoint)  # verifies the training state, which `policy_only` skips
    return replace(checkpoint, source=address)


@contextmanager
def _name_address(directory: Path, address: str) -> Iterator[None]:
    """Puts the address of a checkpoint into errors in place of the directory, which ends with the download's use."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(directory), address)) from error


def _download_manifest(client: MlflowClient, run_id: str, path: str) -> Path:
    """Downloads the manifest of a checkpoint into a new directory with the checkpoint's name; returns the directory."""
    if not _PATH.fullmatch(path):
        raise CheckpointError(f"run {run_id} has {one_line(path, ascii)} in MLflow, which is no checkpoint's path")
    directory = make_download_directory() / path
    directory.mkdir(parents=True)
    client.download_artifacts(run_id, f"{path}/{MANIFEST}", str(directory))
    return directory


def _list_paths(client: MlflowClient, run_id: str, folder: str) -> set[str]:
    return {entry.path for entry in client.list_artifacts(run_id, folder)}
