"""Copies a run from one MLflow store to another; copying it again adds what is missing, and nothing twice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.maintenance.moved_ids import COMPLETE, MOVED_FROM, MovedIds, Standing, find_standing, make_mark
from rl_training.runtime.checkpoint.manifest import MANIFEST
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import create_or_find

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

POINTS, PARAMS, TAGS = 1_000, 100, 100
"""MLflow's limits on what one request may have."""

OWN_TAGS = ("mlflow.runName",)
"""Tags that MLflow sets itself."""


def find_moved_run(target: MlflowClient, experiment_id: str, run: Run) -> Run | None:
    """Returns the copy of a run, which may have been sent from its directory; None if there is none."""
    wanted = [f"tags.`{MOVED_FROM}` = '{run.info.run_id}'"]
    if RUN_UID in run.data.tags:
        wanted.append(f"tags.{RUN_UID} = '{run.data.tags[RUN_UID]}'")
    for each in wanted:
        found = target.search_runs([experiment_id], each, max_results=1, order_by=["start_time ASC"])
        if found:
            return found[0]
    return None


def get_or_create_run(target: MlflowClient, experiment_id: str, run: Run) -> Run:
    """Returns the run in the new store; creates it if it does not exist."""
    find = partial(find_moved_run, target, experiment_id, run)
    if (found := find()) is not None:
        return found
    tags = {MOVED_FROM: run.info.run_id, **{key: run.data.tags[key] for key in (RUN_UID,) if key in run.data.tags}}
    info = run.info
    create = partial(target.create_run, experiment_id, start_time=info.start_time, run_name=info.run_name, tags=tags)
    return create_or_find(create, find)


def copy_run(source: MlflowClient, target: MlflowClient, run: Run, moved: Run) -> None:
    """Copies the parameters, metrics, datasets and artifacts of a run; its tags and end follow in `finish_run`."""
    from mlflow.entities import Param

    new_id = moved.info.run_id
    params = [Param(key, value) for key, value in run.data.params.items() if key not in moved.data.params]
    for i in range(0, len(params), PARAMS):
        target.log_batch(new_id, params=params[i : i + PARAMS])
    points = [point for key in run.data.metrics for point in list_points(source, run.info.run_id, key)]
    for i in range(0, len(points), POINTS):
        target.log_batch(new_id, metrics=points[i : i + POINTS])
    if run.inputs is not None and run.inputs.dataset_inputs:
        target.log_inputs(new_id, run.inputs.dataset_inputs)
    copy_files(source, target, run.info.run_id, new_id)


def list_points(client: MlflowClient, run_id: str, key: str) -> list[Metric]:
    """Returns the points of a metric with their steps and times; those that rank a model are the model's as well."""
    from mlflow.entities import Metric

    return [Metric(key, one.value, one.timestamp, one.step) for one in client.get_metric_history(run_id, key)]


def finish_run(target: MlflowClient, run: Run, moved: Run, ids: MovedIds) -> None:
    """Copies the tags of a run, its end, and the models that it made."""
    from mlflow.entities import LoggedModelOutput, RunTag

    new_id = moved.info.run_id
    outputs = [one for one in _list_outputs(run) if one.model_id in ids.models]
    there = {one.model_id for one in _list_outputs(moved)}
    missing = [LoggedModelOutput(ids.models[one.model_id], one.step) for one in outputs]
    missing = [one for one in missing if one.model_id not in there]
    if missing:
        target.log_outputs(new_id, missing)
    tags = [RunTag(key, value) for key, value in make_tags(run, ids).items()]
    for i in range(0, len(tags), TAGS):
        target.log_batch(new_id, tags=tags[i : i + TAGS])
    if run.info.end_time is not None:  # a run that was resumed is RUNNING, and has the time of its earlier end
        target.set_terminated(new_id, run.info.status, end_time=run.info.end_time)
    elif run.info.status != moved.info.status:
        target.update_run(new_id, status=run.info.status)


def find_run_standing(source: MlflowClient, run: Run, moved: Run) -> Standing:
    """Returns how the copy of a run stands."""
    return find_standing(moved.data.tags.get(COMPLETE), _get_end(moved), _list_content(source, run))


def mark_run(source: MlflowClient, target: MlflowClient, run: Run, moved: Run) -> None:
    """Marks a run as moved; `run` and `moved` are as they were compared."""
    target.set_tag(moved.info.run_id, COMPLETE, make_mark(_get_end(moved), _list_content(source, run)))


def _get_end(run: Run) -> list[Any]:
    return [run.info.status, run.info.end_time]


def _list_content(source: MlflowClient, run: Run) -> list[Any]:
    """Returns what tells whether a run has changed; of a metric the newest value, because points are only added."""
    data, outputs = run.data, sorted(one.model_id for one in _list_outputs(run))
    files = sorted(iterate_files(source, run.info.run_id))
    return [_get_end(run), data.params, data.metrics, data.tags, outputs, files]


def make_tags(run: Run, ids: MovedIds) -> dict[str, str]:
    """Returns the tags of a run as the new store has them."""
    tags = {key: value for key, value in run.data.tags.items() if key not in OWN_TAGS}
    return {**ids.translate_tags(tags), MOVED_FROM: run.info.run_id}


def _list_outputs(run: Run) -> list[Any]:
    return list(run.outputs.model_outputs) if run.outputs is not None else []


def copy_files(source: MlflowClient, target: MlflowClient, run_id: str, new_id: str) -> None:
    """Copies the artifacts of a run that the new store lacks or has in another size, each manifest as the last one."""
    there = dict(iterate_files(target, new_id))
    missing = [path for path, size in iterate_files(source, run_id) if there.get(path) != size]
    for path in sorted(missing, key=lambda path: (path.endswith(f"/{MANIFEST}"), path)):
        with tempfile.TemporaryDirectory() as folder:
            local = source.download_artifacts(run_id, path, folder)
            parent = Path(path).parent.as_posix()
            target.log_artifact(new_id, local, None if parent == "." else parent)


def iterate_files(client: MlflowClient, run_id: str, folder: str | None = None) -> Iterator[tuple[str, int]]:
    """Yields path and size of each artifact of a run."""
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from iterate_files(client, run_id, entry.path)
        else:
            yield entry.path, entry.file_size or 0
