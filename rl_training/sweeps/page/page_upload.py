"""Sends the page of a sweep from its folder to MLflow; sending again adds what is missing, and nothing twice."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import TrackingError
from rl_training.run_layout import MLFLOW
from rl_training.sweeps.page.page_files import ARTIFACTS, TABLE
from rl_training.sweeps.page.page_record import EXPERIMENT_ID, RUN_ID, PageRecord
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import MAX_TAG, PARENT, SWEEP_UID, WINNER, make_legal_name, shorten
from rl_training.tracking.mlflow_run import RunAddress, find_or_create_run, reopen
from rl_training.tracking.mlflow_store import NOTE, connect, iterate_runs, strip_credentials
from rl_training.tracking.record_schemas import Address
from rl_training.tracking.shipping.artifact_files import sync_artifacts

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

RECORD = "page.json"
"""The file of the folder that describes the page."""

TABLES_TAG = "mlflow.loggedArtifacts"
"""MLflow's tag with the artifacts that are tables."""

MOST_METRICS = 1_000
"""MLflow's limit on the metrics of one request."""


def open_page(folder: Path, uri: str, *, new_run: bool = False) -> RunAddress:
    """Returns the address of the sweep's run; creates the run if this is the first time.

    Args:
        folder: The sweep's folder, with its `page.json`.
        uri: The tracking URI.
        new_run: Whether to create a new run if the known one was deleted.

    Raises:
        TrackingError: The folder has no page, or the run or its experiment was deleted.
        MlflowException: MLflow can't be reached.
    """
    description = {**read_page(folder), "tags": {"run_dir": str(folder)}}
    address = find_or_create_run(connect(uri), uri, description, find_known_run(folder, uri), new_run)
    json_files.write_json(folder / MLFLOW, {"run_id": address.run_id, "tracking_uri": strip_credentials(uri)})
    return address


def find_known_run(folder: Path, uri: str) -> str | None:
    """Returns the id of the sweep's run in this store, from the folder; None if it was not there before."""
    known = json_files.read_json(folder / MLFLOW, Address)
    return known["run_id"] if known is not None and known["tracking_uri"] == strip_credentials(uri) else None


def read_page(folder: Path) -> PageRecord:
    """Returns the record of a page.

    Raises:
        TrackingError: The folder has none, or it is damaged.
    """
    record: PageRecord | None = json_files.read_json(folder / RECORD, PageRecord)
    if record is None:
        raise TrackingError(f"{folder} is not the folder of a sweep: it has no {RECORD} that can be read")
    return record


def send_page(client: MlflowClient, address: RunAddress, folder: Path, sent: dict[str, tuple[int, int]]) -> None:
    """Sends what MLflow lacks of the page.

    Args:
        client: MLflow's client.
        address: The sweep's run.
        folder: The sweep's folder.
        sent: The size and time of each file that this process has sent; is extended.

    Raises:
        MlflowException: MLflow can't be reached.
    """
    record, run = read_page(folder), client.get_run(address.run_id)
    if record["status"] == "RUNNING" or run.info.status not in ("RUNNING", record["status"]):
        reopen(client, run)
    _log_batch(client, run, record)
    for name in ARTIFACTS:
        if (mark := _mark(folder / name)) is not None and sent.get(name) != mark:
            client.log_artifact(address.run_id, str(folder / name))
            sync_artifacts(run.info.artifact_uri, [name])
            sent[name] = mark
    _write_note(client, run, record, address)
    if record["status"] == "RUNNING":
        return
    _adopt_runs(client, address, record["run_uid"])
    if client.get_run(address.run_id).info.status != record["status"]:
        client.set_terminated(address.run_id, record["status"])


def _mark(path: Path) -> tuple[int, int] | None:
    """Returns the size and time of a file; None if it is missing, or a link, which nothing here makes."""
    if path.is_symlink() or not path.is_file():
        return None
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _log_batch(client: MlflowClient, run: Run, record: PageRecord) -> None:
    from mlflow.entities import Metric, Param, RunTag

    tags = {**record["tags"], TABLES_TAG: json.dumps([{"path": TABLE, "type": "table"}])}
    if record["winner"] is not None:
        tags[WINNER] = record["winner"]
    params = [Param(key, value) for key, value in record["params"].items() if key not in run.data.params]
    client.log_batch(
        run.info.run_id, params=params, tags=[RunTag(make_legal_name(k), shorten(v, MAX_TAG)) for k, v in tags.items()]
    )
    points, now = record["metrics"], round(time.time() * 1000)
    there = _find_points(client, run, {one["name"] for one in points})
    missing = [
        Metric(one["name"], one["value"], now, one["step"]) for one in points if (one["name"], one["step"]) not in there
    ]
    for start in range(0, len(missing), MOST_METRICS):
        client.log_batch(run.info.run_id, metrics=missing[start : start + MOST_METRICS])


def _find_points(client: MlflowClient, run: Run, names: set[str]) -> set[tuple[str, int]]:
    """Returns name and step of the points that MLflow has."""
    known = sorted(names & run.data.metrics.keys())
    return {(name, one.step) for name in known for one in client.get_metric_history(run.info.run_id, name)}


def _write_note(client: MlflowClient, run: Run, record: PageRecord, address: RunAddress) -> None:
    """Writes the text of the page, unless a user has rewritten its first paragraph."""
    note = record["note"].replace(RUN_ID, address.run_id).replace(EXPERIMENT_ID, address.experiment_id)
    first, _, _ = note.partition("\n\n")
    if run.data.tags.get(NOTE, first).startswith(first):
        client.set_tag(address.run_id, NOTE, shorten(note, MAX_TAG))


def _adopt_runs(client: MlflowClient, address: RunAddress, sweep_uid: str) -> None:
    """Nests the runs of trials that were trained offline, or while this run did not exist yet, below it."""
    for run in iterate_runs(client, [address.experiment_id], f"tags.`{SWEEP_UID}` = '{sweep_uid}'"):
        if run.data.tags.get(PARENT) != address.run_id:
            client.set_tag(run.info.run_id, PARENT, address.run_id)
