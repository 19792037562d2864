"""The monitoring run of a registered model: an MLflow run to which every evaluation of its versions is added.

The steps of its metrics are the numbers of the evaluations, and each evaluation has a record with every episode among
the artifacts. The record is written first, and its name contains the id of the evaluation. An evaluation that was
interrupted is therefore completed, not repeated, when it is requested again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.system.download_directories import make_download_directory
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_links import get_ui_hint
from rl_training.tracking.mlflow_names import KIND
from rl_training.tracking.mlflow_store import create_or_find, get_or_create_experiment
from rl_training.tracking.record_schemas import MonitoringRecord

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "monitoring"
"""The experiment of monitoring runs, whose steps are not environment steps and don't compare with training."""

EXPERIMENT_NOTE = (
    "One run for each registered model whose champion `rl-training flow evaluate` watches. The steps of its metrics "
    "are the numbers of the evaluations."
)

MONITORING = "monitoring"
MODEL_TAG = "registered_model"

FOLDER = "evaluations"


@dataclass(frozen=True)
class RecordedEvaluation:
    """An evaluation in the monitoring run."""

    number: int
    """Number of the evaluation, counted from 1."""
    record: Mapping[str, Any]
    path: str
    """Path of the record among the run's artifacts."""


def read_evaluation(path: Path) -> dict[str, Any]:
    """Returns the evaluation in a downloaded record.

    Raises:
        TrackingError: The record is missing or damaged.
    """
    return json_files.read_record(path, MonitoringRecord)


class MonitoringRun:
    """The monitoring run of one registered model."""

    def __init__(self, client: MlflowClient, uri: str, run: Run) -> None:
        self._client = client
        self.run_id: str = run.info.run_id
        self.ui = get_ui_hint(uri, run.info.experiment_id, run.info.run_id)

    def find(self, evaluation_id: str) -> RecordedEvaluation | None:
        """Returns the evaluation with this id, or None if there is none yet."""
        for number, path in self._list_records():
            if path.endswith(f"_{evaluation_id}.json"):
                local = self._client.download_artifacts(self.run_id, path, str(make_download_directory()))
                return RecordedEvaluation(number, read_evaluation(Path(local)), path)
        return None

    def add(self, record: Mapping[str, Any]) -> RecordedEvaluation:
        """Adds an evaluation under the next number; the caller holds the model's lock."""
        number = max((number for number, _ in self._list_records()), default=0) + 1
        path = f"{FOLDER}/{number:06d}_{record['evaluation_id']}.json"
        self._client.log_text(self.run_id, json.dumps(record, indent=2, allow_nan=False), path)
        return RecordedEvaluation(number, record, path)

    def log(self, evaluation: RecordedEvaluation, metrics: Mapping[str, float]) -> None:
        """Logs an evaluation's metrics with the time of the record, so that logging them again changes nothing."""
        from mlflow.entities import Metric

        timestamp = round(datetime.fromisoformat(evaluation.record["time"]).timestamp() * 1000)
        points = [Metric(name, value, timestamp, evaluation.number) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=points)
        self._client.set_terminated(self.run_id, "FINISHED")

    def _list_records(self) -> list[tuple[int, str]]:
        paths = [entry.path for entry in self._client.list_artifacts(self.run_id, FOLDER)]
        return [(int(Path(path).name.split("_")[0]), path) for path in paths]


def find_monitoring_run(client: MlflowClient, uri: str, model: str) -> MonitoringRun | None:
    """Returns the monitoring run of a registered model, or None if there is none."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"tags.`{KIND}` = '{MONITORING}' and tags.{MODEL_TAG} = '{model}'"
    runs = client.search_runs(experiments, wanted, order_by=["attributes.start_time ASC"], max_results=1)
    return MonitoringRun(client, uri, runs[0]) if runs else None


def get_or_create_monitoring_run(client: MlflowClient, uri: str, model: str, env_id: str) -> MonitoringRun:
    """Returns the monitoring run of a registered model, or creates it; the caller holds the model's lock."""
    if (there := find_monitoring_run(client, uri, model)) is not None:
        return there
    tags = {
        KIND: MONITORING,
        MODEL_TAG: model,
        "env_id": env_id,
        "mlflow.note.content": (
            f"Evaluations of the registered model **{model}** on fresh episodes. The metrics' steps are the numbers of "
            f"the evaluations; `{FOLDER}/` among the artifacts has each of them with all its episodes."
        ),
    }
    experiment_id = get_or_create_experiment(client, uri, EXPERIMENT, EXPERIMENT_NOTE)
    create = partial(client.create_run, experiment_id, run_name=f"monitoring {model}", tags=tags)
    return create_or_find(lambda: MonitoringRun(client, uri, create()), lambda: find_monitoring_run(client, uri, model))
