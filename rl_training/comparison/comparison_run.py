"""Logs the page of a comparison to MLflow: to the run of the sweep that was compared, or to a run of its own."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from rl_training.tracking.mlflow_links import get_ui_hint
from rl_training.tracking.mlflow_names import COMPARISON, KIND
from rl_training.tracking.mlflow_run import EXPERIMENT_NOTE, RUN_UID, find_run_id
from rl_training.tracking.mlflow_store import (
    NOTE,
    connect,
    create_or_find,
    get_or_create_experiment,
    resolve_tracking_uri,
    translate_mlflow_errors,
)
from rl_training.tracking.shipping.artifact_files import sync_artifacts

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from rl_training.comparison.comparison import Comparison

PAGE, DATA = "comparison.html", "comparison.json"
"""The artifacts: the page, and the comparison as JSON."""


def log_comparison(comparison: Comparison) -> tuple[str, str]:
    """Logs the page and the numbers of a comparison.

    Returns:
        The id of the MLflow run, and the address of its page or the command that opens it.

    Raises:
        TrackingError: MLflow can't be reached.
    """
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, "the comparison"):
        client = connect(uri)
        run_id = comparison.sweep or _create_run(client, uri, comparison)
        client.log_text(run_id, comparison.to_html(), PAGE)
        client.log_text(run_id, json.dumps(comparison.to_dict(), indent=1, allow_nan=False), DATA)
        info = client.get_run(run_id).info
        sync_artifacts(info.artifact_uri, [PAGE, DATA])
        if comparison.sweep is None:
            client.set_terminated(run_id, "FINISHED")
        return run_id, get_ui_hint(uri, info.experiment_id, run_id)


def _create_run(client: MlflowClient, uri: str, comparison: Comparison) -> str:
    """Creates a run in the experiment of the reference."""
    experiment = comparison.groups[0].group.runs[0].config.experiment
    experiment_id, run_uid = get_or_create_experiment(client, uri, experiment, EXPERIMENT_NOTE), uuid.uuid4().hex
    verdicts = [f"- {verdict.text}" for verdict in comparison.verdicts]
    note = "\n".join([f"`{PAGE}` among the artifacts shows the comparison.", "", *verdicts])
    tags = {KIND: COMPARISON, RUN_UID: run_uid, NOTE: note}

    def create() -> str:
        return str(client.create_run(experiment_id, run_name=f"comparison {comparison.env_id}", tags=tags).info.run_id)

    return create_or_find(create, lambda: find_run_id(client, run_uid))
