"""Compares two MLflow stores after a migration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rl_training.errors import CheckpointError
from rl_training.maintenance.moved_ids import MovedIds
from rl_training.maintenance.moved_models import list_versions
from rl_training.maintenance.moved_runs import iterate_files, list_points, make_tags
from rl_training.tracking.version_files import download_verified_copy

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def find_differences(
    source: MlflowClient,
    target: MlflowClient,
    uri: str,
    runs: Sequence[tuple[Run, Run]],
    models: Sequence[str],
    ids: MovedIds,
) -> Iterator[str]:
    """Yields what the new store has not as the old one has it.

    Args:
        source: Client of the old store.
        target: Client of the new store.
        uri: The URI of the new store.
        runs: Each run of the old store with its copy.
        models: The names of the registered models.
        ids: The new ids.
    """
    for run, moved in runs:
        for part in _compare_run(source, target, run, moved, ids):
            yield f"{part} of run {run.info.run_id}, which is {moved.info.run_id} there"
    for name in models:
        yield from _compare_model(source, target, uri, name, ids)


def _compare_run(source: MlflowClient, target: MlflowClient, run: Run, moved: Run, ids: MovedIds) -> Iterator[str]:
    if moved.data.params != run.data.params:
        yield "parameters"
    there = moved.data.tags
    if any(there.get(key) != value for key, value in make_tags(run, ids).items()):
        yield "tags"
    if (moved.info.status, moved.info.start_time, moved.info.end_time) != (
        run.info.status,
        run.info.start_time,
        run.info.end_time,
    ):
        yield "status and times"
    for key in run.data.metrics:
        if _collect(source, run, key) != _collect(target, moved, key):
            yield f"metric {key}"
    missing = set(iterate_files(source, run.info.run_id)) - set(iterate_files(target, moved.info.run_id))
    yield from (f"artifact {path}" for path, _ in sorted(missing))


def _collect(client: MlflowClient, run: Run, key: str) -> set[tuple[int, float, int]]:
    return {(one.step, one.value, one.timestamp) for one in list_points(client, run.info.run_id, key)}


def _compare_model(source: MlflowClient, target: MlflowClient, uri: str, name: str, ids: MovedIds) -> Iterator[str]:
    there = {str(version.version): version for version in list_versions(target, name)}
    for version in list_versions(source, name):
        moved = there.get(str(version.version))
        if moved is None:
            yield f"version {version.version} of {name} is missing"
            continue
        tags = ids.translate_tags(version.tags)
        if any(moved.tags.get(key) != value for key, value in tags.items()):
            yield f"tags of version {version.version} of {name}"
        try:
            copy = download_verified_copy(target, uri, moved)
        except CheckpointError as error:
            yield f"version {version.version} of {name}: {error}"
            continue
        if copy.policy_sha256 != version.tags.get("policy_sha256", copy.policy_sha256):
            yield f"the policy of version {version.version} of {name}"
    aliases = {alias: str(number) for alias, number in source.get_registered_model(name).aliases.items()}
    if {alias: str(number) for alias, number in target.get_registered_model(name).aliases.items()} != aliases:
        yield f"aliases of {name}"
