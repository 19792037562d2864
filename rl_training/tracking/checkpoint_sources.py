"""Where a checkpoint can come from: a directory, an MLflow run, or a registered model."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

from rl_training.errors import CheckpointError, TrackingError, UserError, one_line
from rl_training.run_layout import CHECKPOINTS, CONFIG, REPLAY
from rl_training.runs.locks import require_free
from rl_training.runtime.checkpoint import (
    Checkpoint,
    find_checkpoint,
    load_trainer_state,
    newest_good,
    open_checkpoint,
)
from rl_training.runtime.checkpoint.downloads import Download, write_download
from rl_training.runtime.checkpoint.manifest import MANIFEST, POLICY, is_shard, read_manifest
from rl_training.system.paths import downloads_root
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import connect, explain, resolve_tracking_uri, strip_credentials

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

CHECKPOINT_TAG = "checkpoint"
"""Tag of a registered version: the name of its run's checkpoint."""

MODEL_DATA = "data/checkpoint"
"""Where a registered version keeps its own copy of the checkpoint, without the training state."""

KEEP_SECONDS = 24 * 3600.0
"""A download is removed by a later one after this time."""

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUNS = re.compile(r"runs:/+([^/]+)(?:/(.*))?")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_MODELS = re.compile(r"models:/+([^/@]+)(?:@([^/@]+)|/(\d+))")

_UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""What MLflow answers where there is no such run, model or version; and where there is no such alias."""


Wanted = Literal["everything", "weights", "policy"]
"""What a checkpoint is for: to train on; to fine-tune, which takes no replay buffer (that may be many gigabytes); or to
evaluate, which takes no training state either."""


def download_checkpoint(
    source: str | Path, *, tracking_uri: str | None = None, wanted: Wanted = "everything", to_resume: bool = False
) -> Checkpoint:
    """Returns the verified checkpoint that `source` stands for, downloaded where it is not a directory.

    Args:
        source: One of: a checkpoint's or a run's directory; an MLflow run id or `runs:/ID` (the newest good checkpoint
            of the run, by the step in its manifest; from its directory, where that has a later one than MLflow);
            `runs:/ID/checkpoints/step_...` (that one); `models:/NAME@ALIAS` or `models:/NAME/VERSION` (its run's
            checkpoint; where that is gone the version's own copy, which has no training state and serves for
            evaluation and fine-tuning only).
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded one.
        wanted: What is fetched and must be there; of the policy alone, a registered version has a copy of its own.
        to_resume: Whether a run is resumed as it is. While another process trains it, its checkpoints come and go: the
            newest one would soon not be the newest.

    Raises:
        AlreadyTraining: Another process trains the run that is to be resumed.
        CheckpointError: There is no good checkpoint; each that was tried is named.
        TrackingError: MLflow can't be reached.
        UserError: It is no source, or MLflow knows no such run, model or alias.
    """
    if Path(source).exists():
        if to_resume:
            require_free(Path(source))
        return find_checkpoint(source, policy_only=wanted != "everything")
    parsed = parse_source(str(source))
    uri = resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, str(source)):
        client = connect(uri)
        if isinstance(parsed, RunSource):
            return download_run_checkpoint(client, parsed, wanted, to_resume)
        version = find_version(client, parsed)
        if wanted == "policy":
            return download_version_policy(client, uri, version)
        return download_version_checkpoint(client, uri, version, wanted)


class RunSource(NamedTuple):
    """An MLflow run, or a folder of its artifacts."""

    run_id: str
    path: str
    """`checkpoints`, of which the newest good one is meant, or the folder of one checkpoint."""


class ModelSource(NamedTuple):
    """A registered version, by its alias or its number, one of the two."""

    name: str
    alias: str | None
    version: str | None


def parse_source(text: str) -> RunSource | ModelSource:
    """Returns what in MLflow a text names.

    Raises:
        UserError: It names nothing there, and is no directory either.
    """
    if (model := _MODELS.fullmatch(text)) is not None:
        return ModelSource(model[1], model[2], model[3])
    if (run := _RUNS.fullmatch(text)) is not None:
        return RunSource(run[1], (run[2] or CHECKPOINTS).rstrip("/"))
    if _RUN_ID.fullmatch(text):
        return RunSource(text, CHECKPOINTS)
    raise UserError(
        f"{text!r} is no checkpoint; expected a checkpoint's or run's directory, an MLflow run id, "
        f"runs:/ID[/checkpoints/step_...], or models:/NAME@ALIAS"
    )


@contextmanager
def translate_mlflow_errors(uri: str, what: str) -> Iterator[None]:
    """Turns MLflow's errors in the block into ours, by their codes.

    Raises:
        UserError: MLflow knows no such thing as `what`.
        TrackingError: MLflow can't be reached, or is in trouble.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        where, why = strip_credentials(uri), explain(error, uri)
        if error.error_code in _UNKNOWN:
            raise UserError(f"{what}: MLflow at {where} has no such thing: {why}") from None
        raise TrackingError(f"{what}: MLflow at {where} can't be reached or is in trouble: {why}") from None


def find_version(client: MlflowClient, source: ModelSource) -> ModelVersion:
    """Returns a registered version by its alias, or by its number."""
    if source.alias is not None:
        return client.get_model_version_by_alias(source.name, source.alias)
    assert source.version is not None
    return client.get_model_version(source.name, source.version)


def download_version_checkpoint(
    client: MlflowClient, uri: str, version: ModelVersion, wanted: Wanted = "everything"
) -> Checkpoint:
    """Returns the checkpoint of the version's run; where that is gone, the version's own copy."""
    from mlflow.exceptions import MlflowException

    name = version.tags.get(CHECKPOINT_TAG)
    if version.run_id and name:
        try:
            return _fetch(client, version.run_id, f"{CHECKPOINTS}/{name}", wanted)
        except (CheckpointError, MlflowException, OSError) as error:
            logger.warning(
                "%s version %s: its run's checkpoint is gone (%s); its own copy has no training state, and serves for "
                "evaluation and fine-tuning only",
                version.name,
                version.version,
                error,
            )
    return download_version_policy(client, uri, version)


def download_version_policy(client: MlflowClient, uri: str, version: ModelVersion) -> Checkpoint:
    """Returns the version's own copy, verified: weights, normaliser and settings, without training state."""
    return open_checkpoint(
        download_version_files(client, uri, version, (MANIFEST, CONFIG, POLICY), MODEL_DATA), policy_only=True
    )


def download_version_files(
    client: MlflowClient, uri: str, version: ModelVersion, names: Iterable[str], folder: str = ""
) -> Path:
    """Downloads files of a registered version, those and no others, into a fresh directory; returns where they are.

    Raises:
        CheckpointError: One is not there: it was not registered by us, or its files are gone.
    """
    from mlflow.artifacts import download_artifacts

    target = make_download_directory() / PurePosixPath(folder).name
    with _files_of(client, uri, version) as location:
        for name in names:
            address = "/".join(part for part in (location, folder, name) if part)
            download_artifacts(artifact_uri=address, dst_path=str(target), tracking_uri=uri, registry_uri=uri)
    return target


def list_version_files(client: MlflowClient, uri: str, version: ModelVersion) -> list[str]:
    """Returns the paths of a registered version's files; a folder that is none of ours stands for what is in it.

    Raises:
        CheckpointError: Its files are gone.
    """
    from mlflow.artifacts import list_artifacts

    found: list[str] = []
    folders = [""]
    with _files_of(client, uri, version) as location:
        for folder in folders:  # which grows, by folders of ours alone
            address = "/".join(part for part in (location, folder) if part)
            for entry in list_artifacts(artifact_uri=address, tracking_uri=uri):
                path = "/".join(part for part in (folder, PurePosixPath(entry.path).name) if part)
                ours = entry.is_dir and f"{MODEL_DATA}/".startswith(f"{path}/")
                (folders if ours else found).append(path)
    return found


@contextmanager
def _files_of(client: MlflowClient, uri: str, version: ModelVersion) -> Iterator[str]:
    """Gives the address of a version's files; that they are not there is an error of ours."""
    from mlflow.exceptions import MlflowException

    try:
        yield client.get_model_version_download_uri(version.name, version.version).rstrip("/")
    except (OSError, MlflowException) as error:
        if isinstance(error, MlflowException) and error.error_code not in _UNKNOWN:
            raise
        raise CheckpointError(
            f"version {version.version} of {version.name} has no files that are ours: {explain(error, uri)}"
        ) from error


def make_download_directory() -> Path:
    """Returns a new, empty directory for a download; those of yesterday are removed."""
    root = downloads_root()
    for old in root.iterdir():
        if time.time() - old.stat().st_mtime > KEEP_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=root))


def download_run_checkpoint(
    client: MlflowClient, source: RunSource, wanted: Wanted, to_resume: bool = False
) -> Checkpoint:
    """Returns the checkpoint at an artifact path of a run, or the newest good one where the path is their folder."""
    run_id, path = source
    run = client.get_run(run_id)  # no such run is another error than no such artifact
    run_dir = Path(run.data.tags.get("run_dir", ""))
    skipped: list[str] = []
    if path != CHECKPOINTS:
        checkpoint = _fetch(client, run_id, path, wanted)
        later = [step for step, _ in _newest_first(client, run_id, skipped) if step > checkpoint.num_timesteps]
        write_download(checkpoint, Download(newest=not later, run_dir=run_dir))
        return checkpoint
    here, _ = newest_good(run_dir / CHECKPOINTS)
    if here is not None and here.run_uid != run.data.tags.get(RUN_UID):
        here = None
    if here is not None and to_resume:
        require_free(run_dir)
    for step, name in _newest_first(client, run_id, skipped):
        if here is not None and here.num_timesteps > step:
            break
        try:
            checkpoint = _fetch(client, run_id, f"{CHECKPOINTS}/{name}", wanted)
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        for line in skipped:
            logger.warning("skipped: %s", line)
        write_download(checkpoint, Download(newest=True, run_dir=run_dir))
        return checkpoint
    if here is not None:
        logger.info("%s is later than what MLflow has of run %s", here.path, run_id)
        return here
    raise CheckpointError(f"run {run_id} has no good checkpoint in MLflow" + "".join(f"; {s}" for s in skipped))


def _newest_first(client: MlflowClient, run_id: str, skipped: list[str]) -> list[tuple[int, str]]:
    """Returns step and name of a run's checkpoints by the step in their manifests, which alone are downloaded."""
    found = []
    for entry in client.list_artifacts(run_id, CHECKPOINTS):
        if not entry.is_dir:
            continue
        try:
            if f"{entry.path}/{MANIFEST}" not in _paths(client, run_id, entry.path):
                raise CheckpointError(f"{entry.path} has no {MANIFEST}: its upload did not end")
            manifest = read_manifest(_fetch_manifest(client, run_id, entry.path))
            found.append((manifest.num_timesteps, Path(entry.path).name))
        except CheckpointError as error:
            skipped.append(str(error))
    return sorted(found, reverse=True)


def _fetch(client: MlflowClient, run_id: str, path: str, wanted: Wanted) -> Checkpoint:
    """Downloads a checkpoint, its shards from the folder that the run's checkpoints share, and verifies it."""
    there = _paths(client, run_id, path)
    if f"{path}/{MANIFEST}" not in there:
        raise CheckpointError(f"run {run_id} has no {path} in MLflow, or its upload did not end")
    directory = _fetch_manifest(client, run_id, path)
    names = (CONFIG, POLICY) if wanted == "policy" else tuple(read_manifest(directory).files)
    if wanted == "weights":
        names = tuple(name for name in names if not is_shard(name))
    artifacts = [f"{REPLAY if is_shard(name) else path}/{name}" for name in names]
    if any(map(is_shard, names)):
        there |= _paths(client, run_id, REPLAY)
    for artifact in artifacts:
        if artifact in there:  # what is missing is named by the verification
            client.download_artifacts(run_id, artifact, str(directory))
    checkpoint = open_checkpoint(directory, policy_only=wanted != "everything")
    if wanted == "weights":
        load_trainer_state(checkpoint)  # which verifies it
    return checkpoint


def _fetch_manifest(client: MlflowClient, run_id: str, path: str) -> Path:
    """Downloads a checkpoint's manifest alone; returns the fresh directory, of the checkpoint's name, that it is in."""
    if not _PATH.fullmatch(path):
        raise CheckpointError(f"run {run_id} has {one_line(path, ascii)} in MLflow, which is no checkpoint's path")
    directory = make_download_directory() / path
    directory.mkdir(parents=True)
    client.download_artifacts(run_id, f"{path}/{MANIFEST}", str(directory))
    return directory


def _paths(client: MlflowClient, run_id: str, folder: str) -> set[str]:
    return {entry.path for entry in client.list_artifacts(run_id, folder)}
