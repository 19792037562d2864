"""Finds runs and models that were deleted in MLflow some time ago, and removes them for good.

MLflow's own `mlflow gc` is not used: it looks at no registered version, and with a list of runs it still removes all
deleted experiments with their runs. What it does with one run is done here, by the same calls. They need the database
itself; for a server, the server's own environment variable names it.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rl_training.errors import UserError
from rl_training.maintenance.databases import MLFLOW_DATABASE, read_database
from rl_training.maintenance.items import Findings, Item, StillNeeded, measure
from rl_training.maintenance.needed_runs import Needed, find_needed
from rl_training.promotion.monitoring_run import MONITORING
from rl_training.run_layout import METADATA
from rl_training.runs.metadata import Metadata
from rl_training.sweeps.segments import find_sweep_dir
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import KIND, SWEEP, SWEEP_UID
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import is_server

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.tracking import MlflowClient


def find_deleted(client: MlflowClient, uri: str, older_than: timedelta, leaving: set[Path]) -> Findings:
    """Returns the deleted runs and logged models that may go.

    Args:
        client: MLflow's client.
        uri: The store.
        older_than: Only what was deleted so long ago.
        leaving: The run directories that go now.

    Raises:
        UserError: The variable of MLflow's server names something else than its database.
    """
    findings, store = Findings(), _open_store(client, uri)
    if store is None:
        findings.notes.append(
            f"runs that were deleted on an MLflow server are removed only where {MLFLOW_DATABASE} names its database, "
            f"as for the server"
        )
        return findings
    needed, age = find_needed(client), round(older_than.total_seconds() * 1000)
    for run_id in store._get_deleted_runs(older_than=age):
        run = client.get_run(run_id)
        models = _list_models(client, run)
        reason = _explain_why_kept(run, models, needed, leaving)
        if reason is not None:
            findings.kept[f"deleted run: {reason}"] += 1
            continue
        size = sum(_measure_artifacts(place, uri) for place in (run.info.artifact_uri, *map(_locate, models)))
        remove = partial(_remove_run, client, store, uri, run_id, leaving)
        findings.items.append(Item("deleted run", run_id, size, remove))
    for model_id in store._get_deleted_logged_models(older_than=age):
        model = store.get_logged_model(model_id, allow_deleted=True)
        if _is_registered(model, needed):
            findings.kept["deleted model: a registered version comes from it"] += 1
            continue
        remove = partial(_remove_model, client, store, uri, model)
        findings.items.append(Item("deleted model", model_id, _measure_artifacts(_locate(model), uri), remove))
    return findings


def _open_store(client: MlflowClient, uri: str) -> Any:
    """Returns the store with the database; None if it is a server's and nothing here names it."""
    if not is_server(uri):
        return client._tracking_client.store
    if MLFLOW_DATABASE not in os.environ:
        return None
    database = read_database("mlflow", MLFLOW_DATABASE)
    if "logged_models" not in database.list_tables():  # MLflow would make its tables there
        raise UserError(f"{MLFLOW_DATABASE} is {database}, expected the database of the MLflow server at {uri}")
    from mlflow.store.tracking import sqlalchemy_store

    open_store: Any = sqlalchemy_store.SqlAlchemyStore
    return open_store(database.url.render_as_string(hide_password=False), "mlflow-artifacts:/")


def _explain_why_kept(run: Run, models: list[LoggedModel], needed: Needed, leaving: set[Path]) -> str | None:
    tags = run.data.tags
    if run.info.run_id in needed.run_ids or tags.get(RUN_UID) in needed.run_uids:
        return "a registered version comes from it"
    if any(_is_registered(model, needed) for model in models):
        return "a registered version comes from it"
    if run.info.status == "RUNNING":
        return "it is RUNNING"
    if _has_directory(run) and Path(tags["run_dir"]) not in leaving:
        return "its directory is kept"
    sweep = tags.get(RUN_UID) if tags.get(KIND) == SWEEP else tags.get(SWEEP_UID)
    if sweep and find_sweep_dir(sweep).exists():
        return "it belongs to a sweep"
    if tags.get(KIND) == MONITORING:
        return "it monitors a champion"
    places = [run.info.artifact_uri, *map(_locate, models)]
    if not all(_is_own_folder(place, run, models) for place in places):
        return "its artifacts are in an unexpected place"
    return None


def _has_directory(run: Run) -> bool:
    """Returns whether the run's directory is on this machine."""
    tags = run.data.tags
    if tags.get("host") != socket.gethostname():
        return False
    metadata = json_files.read_json(Path(tags.get("run_dir", "")) / METADATA, Metadata)
    return metadata is not None and metadata["run_uid"] == tags.get(RUN_UID)


def _is_registered(model: LoggedModel, needed: Needed) -> bool:
    return model.model_id in needed.model_ids or _locate(model) in needed.locations


def _locate(model: LoggedModel) -> str:
    return str(model.artifact_location).rstrip("/")


def _list_models(client: MlflowClient, run: Run) -> list[LoggedModel]:
    experiment, wanted = run.info.experiment_id, f"source_run_id = '{run.info.run_id}'"
    return list(client.search_logged_models([experiment], wanted))


def _is_own_folder(place: str, run: Run, models: list[LoggedModel]) -> bool:
    """Returns whether an address is that of a folder of this run or its models alone, and no link."""
    path, local = PurePosixPath(unquote(urlsplit(place).path)), _get_local_path(place)
    owners = {run.info.run_id, *(model.model_id for model in models)}
    is_link = local is not None and (local.is_symlink() or local.parent.is_symlink())
    return bool(owners & {path.name, path.parent.name}) and not is_link


def _get_local_path(place: str) -> Path | None:
    address = urlsplit(place)
    return Path(unquote(address.path)) if address.scheme in ("", "file") else None


def _measure_artifacts(place: str, uri: str) -> int:
    path = _get_local_path(place)
    if path is not None:
        return measure(path) if path.is_dir() else 0
    repository, size, folders = _open_artifacts(place, uri), 0, [""]
    while folders:
        for entry in repository.list_artifacts(folders.pop()):
            if entry.is_dir:
                folders.append(entry.path)
            else:
                size += entry.file_size or 0
    return size


def _remove_run(client: MlflowClient, store: Any, uri: str, run_id: str, leaving: set[Path]) -> None:
    """Removes a deleted run, its artifacts, and the models of its checkpoints.

    Raises:
        StillNeeded: The run was restored, or something needs it by now.
    """
    run, needed = client.get_run(run_id), find_needed(client)
    models = _list_models(client, run)
    if run.info.lifecycle_stage != "deleted" or _explain_why_kept(run, models, needed, leaving) is not None:
        raise StillNeeded(f"run {run_id} is needed again")
    for model in models:
        client.delete_logged_model(model.model_id)
        _remove_model(client, store, uri, model)
    _remove_artifacts(run.info.artifact_uri, uri)
    store._hard_delete_run(run_id)


def _remove_model(client: MlflowClient, store: Any, uri: str, model: LoggedModel) -> None:
    if _is_registered(model, find_needed(client)):
        raise StillNeeded(f"a version was registered from model {model.model_id}")
    _remove_artifacts(_locate(model), uri)
    store._hard_delete_logged_model(model.model_id)


def _remove_artifacts(place: str, uri: str) -> None:
    path = _get_local_path(place)
    if path is None or path.is_dir():
        _open_artifacts(place, uri).delete_artifacts()


def _open_artifacts(place: str, uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(place, tracking_uri=uri)
