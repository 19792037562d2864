"""Finds the checkpoint that a run, a registered version or a directory offers for promotion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.config.checking import require_sections
from rl_training.config.document import MapNode
from rl_training.config.parsing import Overrides, expand_json, read_overrides
from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.run_layout import BEST, CHECKPOINTS, METADATA
from rl_training.runs.metadata import Metadata
from rl_training.runtime.checkpoint import Checkpoint, best_path, find_checkpoint, open_checkpoint
from rl_training.security.planted_links import refuse_links
from rl_training.system.download_directories import make_download_directory
from rl_training.system.programs import program
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import (
    ModelSource,
    RunSource,
    download_run_checkpoint,
    find_version,
    parse_source,
    read_source,
    resolve_source,
)
from rl_training.tracking.mlflow_run import RUN_UID, find_run_id, get_training_run
from rl_training.tracking.mlflow_store import (
    connect,
    resolve_tracking_uri,
    strip_credentials,
    translate_mlflow_errors,
)
from rl_training.tracking.shipping.sync import find_run_store
from rl_training.tracking.version_files import download_version_policy

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

CHANGEABLE = ("promotion", "evaluation")
"""Sections of the settings that may differ from those of the run: the rules, and how the episodes are played."""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that is offered for promotion."""

    checkpoint: Checkpoint
    config: TrainConfig
    run_id: str
    """The MLflow run that the checkpoint comes from."""
    tracking_uri: str
    """The store that has that run."""


def find_candidate(
    source: str | PathLike[str],
    overrides: Overrides = (),
    *,
    allow_modules: Collection[str] = (),
    tracking_uri: str | None = None,
) -> Candidate:
    """Returns the candidate that `source` names.

    Args:
        source: A run, given as MLflow run id, `run_uid`, `runs:/ID` or directory: its best checkpoint by periodic
            evaluation, or the newest if none was evaluated. A checkpoint, given as `runs:/ID/checkpoints/step_...` or
            directory. A registered version, given as `models:/NAME/VERSION` or `models:/NAME@ALIAS`, which stays in its
            model unless `promotion.model` is set.
        overrides: Settings of `promotion.*` and `evaluation.*`.
        allow_modules: Modules that a received candidate may name; see `rl_training.config.named_modules`.
        tracking_uri: MLflow's store; by default the store of the run in the directory, else `$MLFLOW_TRACKING_URI`,
            else the embedded store.

    Raises:
        CheckpointError: There is no good checkpoint.
        ConfigError: An override is not valid, or sets something other than the rules and the evaluation.
        ModuleRefused: A received candidate names a module that is not allowed.
        TrackingError: MLflow can't be reached.
        UserError: `source` is not valid, or MLflow does not have it.
    """
    text = read_source(source)
    if Path(text).exists():
        return _find_in_directory(Path(text).absolute(), overrides, allow_modules, tracking_uri)
    parsed, uri = parse_source(text), resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, text):
        client = connect(uri)
        found = resolve_source(client, parsed)
        if isinstance(found, Path):
            return _find_in_directory(found, overrides, allow_modules, uri)
        if isinstance(found, ModelSource):
            version = find_version(client, found)
            checkpoint = download_version_policy(client, uri, version)
            config = _make_settings(checkpoint, overrides, allow_modules, model=found.name)
            if not version.run_id:
                raise UserError(f"{text} names no run; expected a version that rl_training registered")
            return Candidate(checkpoint, config, version.run_id, uri)
        named = found.path != CHECKPOINTS
        checkpoint = download_run_checkpoint(client, found, "policy") if named else _find_best_of_run(client, found)
        return Candidate(checkpoint, _make_settings(checkpoint, overrides, allow_modules), found.run_id, uri)


def _find_in_directory(
    path: Path, overrides: Overrides, allow_modules: Collection[str], tracking_uri: str | None
) -> Candidate:
    refuse_links(path)
    best = best_path(path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path)
    checkpoint = find_checkpoint(path, policy_only=True) if best is None else open_checkpoint(best[0], policy_only=True)
    config = _make_settings(checkpoint, overrides, allow_modules)
    uri = find_run_store(checkpoint.path.parent.parent, tracking_uri)
    with translate_mlflow_errors(uri, str(path)):
        run_id = find_run_id(connect(uri), checkpoint.run_uid)
    if run_id is None:
        raise UserError(
            f"MLflow at {strip_credentials(uri)} does not have run {checkpoint.run_uid} of {checkpoint.path}; "
            f"send it with `{program('rl-training')} sync RUN_DIR` first"
        )
    return Candidate(checkpoint, config, run_id, uri)


def _find_best_of_run(client: MlflowClient, source: RunSource) -> Checkpoint:
    """Returns a run's best checkpoint, from the run directory unless MLflow has a better one."""
    run = get_training_run(client, source.run_id)
    here = _read_local_best(Path(run.data.tags.get("run_dir", "")), run.data.tags.get(RUN_UID))
    there, best = None, f"{CHECKPOINTS}/{BEST}"
    if any(entry.path == best for entry in client.list_artifacts(source.run_id, CHECKPOINTS)):
        there = best_path(Path(client.download_artifacts(source.run_id, best, str(make_download_directory()))).parent)
    if here is not None and (there is None or _rank(here) >= _rank(there)):
        return open_checkpoint(here[0], policy_only=True)
    path = CHECKPOINTS if there is None else f"{CHECKPOINTS}/{there[0].name}"
    return download_run_checkpoint(client, source._replace(path=path), "policy")


def _read_local_best(run_dir: Path, run_uid: str | None) -> tuple[Path, float] | None:
    metadata = json_files.read_json(run_dir / METADATA, Metadata)
    return best_path(run_dir / CHECKPOINTS) if metadata is not None and metadata["run_uid"] == run_uid else None


def _rank(best: tuple[Path, float]) -> tuple[float, str]:
    """Returns the sort key of a best checkpoint: its mean return, then its step."""
    path, return_mean = best
    return return_mean, path.name


def _make_settings(
    checkpoint: Checkpoint, overrides: Overrides, allow_modules: Collection[str], *, model: str | None = None
) -> TrainConfig:
    """Returns the checkpoint's settings with the overrides; `model` is used unless they set `promotion.model`."""
    config = config_of_checkpoint(checkpoint, overrides, allow_modules=allow_modules)
    over = read_overrides(overrides)
    require_sections(over, CHANGEABLE, "a promotion")
    rules = expand_json(over.entries["promotion"]) if "promotion" in over.entries else None
    if model is None or (isinstance(rules, MapNode) and "model" in rules.entries):
        return config
    return config.model_copy(update={"promotion": config.promotion.model_copy(update={"model": model})})
