"""Copies logged models and registered models from one MLflow store to another, as `moved_runs` copies runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rl_training.errors import UserError
from rl_training.maintenance.moved_ids import COMPLETE, MOVED_FROM, MovedIds, Standing, find_standing, make_mark
from rl_training.tracking.mlflow_store import UNKNOWN_CODES, create_or_find, no_resend
from rl_training.tracking.shipping.logged_models import REGISTERED

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel
    from mlflow.tracking import MlflowClient


def list_models(client: MlflowClient, experiment_id: str, wanted: str = "") -> Iterator[LoggedModel]:
    """Yields the logged models of an experiment that match a filter."""
    token, more = None, True
    while more:
        page = client.search_logged_models([experiment_id], wanted or None, page_token=token)
        yield from page
        token, more = page.token, bool(page.token)


def copy_model(target: MlflowClient, uri: str, experiment_id: str, model: LoggedModel, ids: MovedIds) -> str:
    """Copies a logged model of a moved run, with its files and metrics; returns its new id."""
    from mlflow.artifacts import download_artifacts
    from mlflow.entities import Metric

    find = partial(_find_model, target, experiment_id, model.model_id)
    run_id = ids.runs[str(model.source_run_id)]
    tags = {key: value for key, value in model.tags.items() if key != REGISTERED}
    create = partial(target.create_logged_model, experiment_id, name=model.name, source_run_id=run_id)
    moved = find() or create_or_find(
        partial(create, tags={**tags, MOVED_FROM: model.model_id}, params=model.params, model_type=model.model_type),
        find,
    )
    if COMPLETE in moved.tags and (moved.status == "READY" or model.status != "READY"):
        return str(moved.model_id)
    if moved.status != "READY" and model.status == "READY":
        with tempfile.TemporaryDirectory() as folder:
            files = download_artifacts(artifact_uri=model.artifact_location, dst_path=folder, tracking_uri=uri)
            target.log_model_artifacts(moved.model_id, files)
        target.finalize_logged_model(moved.model_id, "READY")
    points = [
        Metric(
            one.key,
            one.value,
            one.timestamp,
            one.step,
            model_id=moved.model_id,
            dataset_name=one.dataset_name,
            dataset_digest=one.dataset_digest,
        )
        for one in model.metrics or []
    ]
    if points:
        target.log_batch(run_id, metrics=points)
    target.set_logged_model_tags(moved.model_id, {COMPLETE: "true"})
    return str(moved.model_id)


def _find_model(target: MlflowClient, experiment_id: str, old_id: str) -> LoggedModel | None:
    found = list_models(target, experiment_id, f"tags.`{MOVED_FROM}` = '{old_id}'")
    return min(found, key=lambda model: (model.creation_timestamp, model.model_id), default=None)


def list_versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Returns the versions of a registered model, the oldest first."""
    found: list[ModelVersion] = []
    token, more = None, True
    while more:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        found += page
        token, more = page.token, bool(page.token)
    return sorted(found, key=lambda version: int(version.version))


def require_movable(source: MlflowClient, target: MlflowClient, model: RegisteredModel) -> list[ModelVersion]:
    """Returns the versions of a registered model, all of which can be moved.

    Raises:
        UserError: A version was not made by rl_training, or the new store has another model of this name, so that
            version numbers would differ.
    """
    from mlflow.exceptions import MlflowException

    versions = list_versions(source, model.name)
    for version in versions:
        if not version.run_id or _find_source(source, version) is None:
            raise UserError(
                f"version {version.version} of {model.name} has no run or no logged model, expected a version that "
                f"rl_training registered; delete it, or export it with other tools"
            )
    try:
        there = target.get_registered_model(model.name)
    except MlflowException as error:
        if error.error_code in UNKNOWN_CODES:
            return versions
        raise
    if MOVED_FROM not in there.tags:
        raise UserError(
            f"the server has a registered model {model.name!r} already, expected none; rename one of the two "
            f"(MlflowClient.rename_registered_model), because versions keep their numbers"
        )
    return versions


def copy_registered_model(source: MlflowClient, target: MlflowClient, model: RegisteredModel, ids: MovedIds) -> None:
    """Copies a registered model: its versions with their numbers, tags and descriptions, then its aliases."""
    from mlflow.exceptions import MlflowException

    tags = {**ids.translate_tags(model.tags), MOVED_FROM: model.name}
    try:
        with no_resend():
            target.create_registered_model(model.name, tags=tags, description=model.description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = list_versions(source, model.name)
    there = {str(version.version) for version in list_versions(target, model.name)}  # an SQLite store has numbers
    for version in versions:
        if str(version.version) not in there:
            _create_version(source, target, version, ids)
        for key, value in ids.translate_tags(version.tags).items():
            target.set_model_version_tag(model.name, version.version, key, value)
        if version.description:
            target.update_model_version(model.name, version.version, ids.translate(version.description))
    aliases = source.get_registered_model(model.name).aliases
    for alias, number in aliases.items():
        target.set_registered_model_alias(model.name, alias, str(number))


def find_model_standing(source: MlflowClient, target: MlflowClient, model: RegisteredModel) -> Standing:
    """Returns how the copy of a registered model stands."""
    from mlflow.exceptions import MlflowException

    try:
        mark = target.get_registered_model(model.name).tags.get(COMPLETE)
    except MlflowException as error:
        if error.error_code in UNKNOWN_CODES:
            return "changed"
        raise
    return find_standing(mark, _list_choices(target, model.name), _list_content(source, model.name))


def mark_registered_model(source: MlflowClient, target: MlflowClient, name: str) -> None:
    """Marks a registered model as moved."""
    mark = make_mark(_list_choices(target, name), _list_content(source, name))
    target.set_registered_model_tag(name, COMPLETE, mark)


def _list_choices(client: MlflowClient, name: str) -> list[Any]:
    """Returns the numbers of a registered model's versions, and its aliases."""
    aliases = {alias: str(number) for alias, number in client.get_registered_model(name).aliases.items()}
    return [sorted(int(version.version) for version in list_versions(client, name)), aliases]


def _list_content(source: MlflowClient, name: str) -> list[Any]:
    model, versions = source.get_registered_model(name), list_versions(source, name)
    described = [[int(version.version), version.description, version.tags] for version in versions]
    return [model.description, model.tags, _list_choices(source, name), described]


def _find_source(source: MlflowClient, version: ModelVersion) -> LoggedModel | None:
    """Returns the logged model from which a version was registered; an SQLite store does not tell its id."""
    experiment = source.get_run(str(version.run_id)).info.experiment_id
    found = list_models(source, experiment, f"source_run_id = '{version.run_id}'")
    return next((model for model in found if model.artifact_location == version.source), None)


def _create_version(source: MlflowClient, target: MlflowClient, version: ModelVersion, ids: MovedIds) -> None:
    """Creates a version with the same number; versions that were deleted before it leave their numbers free."""
    from mlflow.exceptions import MlflowException

    model = _find_source(source, version)
    assert model is not None  # see `require_movable`
    moved = target.get_logged_model(ids.models[model.model_id])
    number = int(version.version)
    create = partial(
        target.create_model_version,
        version.name,
        source=moved.artifact_location,
        run_id=ids.runs[str(version.run_id)],
        model_id=moved.model_id,
    )
    while True:
        made = create(tags={MOVED_FROM: str(version.version)}, await_creation_for=0)
        if int(made.version) == number:
            return
        target.delete_model_version(version.name, made.version)
        if int(made.version) > number:
            raise MlflowException(f"version {made.version} of {version.name} was made, expected {number}")
