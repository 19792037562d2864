"""Reads what a report shows of a run: from the run's directory, and from MLflow if the run is there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.api.run_listing import find_newest_step
from rl_training.comparison.recorded_run import RecordedRun, find_directory, read_directory, read_from_mlflow, read_tags
from rl_training.errors import CheckpointError, TrackingError, UserError, error_line
from rl_training.promotion.decision import FOLDER
from rl_training.run_layout import checkpoint_name, find_run_directory
from rl_training.run_report.registered_versions import RegisteredVersion, find_registered_versions
from rl_training.runs.evaluation_result import EvaluationResult
from rl_training.runs.metadata import find_run_in_home, read_metadata
from rl_training.runtime.checkpoint.manifest import read_manifest
from rl_training.security.untrusted_json import NotReadable, open_plain_file, read_json
from rl_training.system.download_directories import discard_downloads, make_download_directory
from rl_training.tracking.checkpoint_sources import ModelSource, RunSource, find_version, match_source, read_source
from rl_training.tracking.mlflow_run import find_run, is_training_run
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.record_schemas import Decision, Episodes

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

CURVES = ("rollout/", "eval/", "train/", "heldout/", "health/", "time/steps_per_second")
"""How the names of the metrics begin that a report may show."""
MOST_FILM_BYTES = 20_000_000
"""A larger film is left out, because a page of that size opens slowly."""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """A run, and what is recorded about it."""

    run: RecordedRun
    metadata: Mapping[str, Any]
    """The content of `metadata.json`; empty if the run's directory is not on this machine."""
    tags: Mapping[str, str]
    """The tags of the MLflow run; empty if it is not known."""
    evaluation: EvaluationResult | None
    """The held-out evaluation."""
    film: bytes | None
    """Its first episode as an animated GIF."""
    device: str | None = None
    """The device that learned; None if it is not known."""
    decisions: tuple[Mapping[str, Any], ...] = ()
    """The records of the decisions on its candidates, oldest first."""
    versions: tuple[RegisteredVersion, ...] = ()
    """The registered versions that were made from it."""
    version: RegisteredVersion | None = None
    """The one of them that the report is about; None if it is about the run."""
    notes: tuple[str, ...] = ()
    """What could not be read, in words."""


@discard_downloads()
def read_run(source: str | PathLike[str]) -> ReportedRun:
    """Returns what is recorded about a run.

    Args:
        source: The directory of a run or of a checkpoint; an MLflow run id, a `run_uid` or `runs:/ID`; or
            `models:/NAME@ALIAS` or `models:/NAME/VERSION` for the run that the version comes from.

    Raises:
        TrackingError: MLflow is needed and can't be reached.
        UserError: The source names no training run, or the run's record is damaged.
    """
    text = read_source(source)
    if Path(text).is_dir():
        return _add_mlflow(_read_here(find_run_directory(text)))
    parsed = match_source(text)
    if parsed is None:
        raise UserError(
            f"there is no run or model {text!r}; expected a run's directory, an MLflow run id or run_uid, runs:/ID, or "
            f"models:/NAME@ALIAS"
        )
    if not isinstance(parsed, ModelSource) and (run_dir := find_run_in_home(parsed.run_id)) is not None:
        return _add_mlflow(_read_here(run_dir))
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, text):
        client = connect(uri)
        version = find_version(client, parsed) if isinstance(parsed, ModelSource) else None
        run_id = parsed.run_id if isinstance(parsed, RunSource) else version and version.run_id
        run = find_run(client, run_id or "")
        if run is None or not is_training_run(run):
            raise UserError(f"{text}: MLflow has no training run {run_id}; expected a run, or a version made from one")
        run_dir = find_directory(run)
        read = _read_there(client, run) if run_dir is None else _read_here(run_dir)
        read = _add_decisions(read, client, run)
        return read if version is None else replace(read, version=_select(read.versions, version))


def _select(versions: tuple[RegisteredVersion, ...], wanted: ModelVersion) -> RegisteredVersion | None:
    names = (wanted.name, str(wanted.version))
    return next((one for one in versions if (one.model, one.number) == names), None)


def _read_here(run_dir: Path) -> ReportedRun:
    metadata, artifacts = read_metadata(run_dir), run_dir / run_layout.ARTIFACTS
    evaluation, notes = _read_evaluation(artifacts / run_layout.HELD_OUT)
    run, newest = read_directory(run_dir), find_newest_step(run_dir)
    return ReportedRun(
        run=replace(run, last_step=max(run.last_step, newest or 0)),
        metadata=metadata,
        tags=read_tags(run_dir),
        device=None if newest is None else _read_device(run_dir / run_layout.CHECKPOINTS / checkpoint_name(newest)),
        evaluation=evaluation,
        film=_read_film(artifacts / run_layout.EPISODE),
        notes=notes,
    )


def _read_there(client: MlflowClient, run: Run) -> ReportedRun:
    """Returns a run whose directory is not on this machine."""
    names = [name for name in run.data.metrics if name.startswith(CURVES)]
    there = {entry.path for entry in client.list_artifacts(run.info.run_id)}
    folder = make_download_directory()
    for name in (run_layout.HELD_OUT, run_layout.EPISODE):
        if name in there:
            client.download_artifacts(run.info.run_id, name, str(folder))
    evaluation, notes = _read_evaluation(folder / run_layout.HELD_OUT)
    return ReportedRun(
        run=read_from_mlflow(client, run, names),
        metadata={},
        tags=dict(run.data.tags),
        evaluation=evaluation,
        film=_read_film(folder / run_layout.EPISODE),
        notes=notes,
    )


def _add_mlflow(here: ReportedRun) -> ReportedRun:
    """Adds what MLflow has of a run that it knows; if MLflow can't be reached, the report says so."""
    if here.run.run_id is None:
        return here
    uri = resolve_tracking_uri()
    try:
        with translate_mlflow_errors(uri, here.run.name):
            client = connect(uri)
            run = find_run(client, here.run.run_id)
            return here if run is None else _add_decisions(here, client, run)
    except (TrackingError, UserError) as error:
        note = f"MLflow was not asked for decisions: {error_line(error)}"
        return replace(here, notes=(*here.notes, note))


def _add_decisions(read: ReportedRun, client: MlflowClient, run: Run) -> ReportedRun:
    """Adds the tags of a run, the versions made from it, and the decisions on its candidates."""
    folder, decisions, notes = make_download_directory(), [], list(read.notes)
    for entry in client.list_artifacts(run.info.run_id, FOLDER):
        path = Path(client.download_artifacts(run.info.run_id, entry.path, str(folder)))
        try:
            decisions.append(read_json(path, Decision))
        except (OSError, NotReadable) as error:
            notes.append(f"{entry.path} can't be read: {error}")
    decisions.sort(key=lambda record: record["time"])
    return replace(
        read,
        tags=dict(run.data.tags),
        decisions=tuple(decisions),
        versions=find_registered_versions(client, run.info.run_id),
        notes=tuple(notes),
    )


def _read_device(checkpoint: Path) -> str | None:
    """Returns the device that a checkpoint was computed on; the settings may say no more than `auto`."""
    with suppress(CheckpointError):
        device = read_manifest(checkpoint).extra.get("device")
        return device if isinstance(device, str) else None
    return None


def _read_evaluation(path: Path) -> tuple[EvaluationResult | None, tuple[str, ...]]:
    """Returns the evaluation in a file, and a note if the file is damaged."""
    try:
        return EvaluationResult.from_dict(read_json(path, Episodes)), ()
    except FileNotFoundError:
        return None, ()
    except (OSError, NotReadable) as error:
        return None, (f"{path.name} can't be read: {error}",)


def _read_film(path: Path) -> bytes | None:
    with suppress(OSError), open_plain_file(path) as file:
        film = file.read(MOST_FILM_BYTES + 1)
        return film if film.startswith(b"GIF8") and len(film) <= MOST_FILM_BYTES else None
    return None
