"""The monitoring run of a registered model in MLflow: one run, to which each evaluation of a version is added.

Its metrics' steps are the numbers of the evaluations, and each evaluation has a record with every episode among the
artifacts. The record comes first and its name holds the evaluation's id, so that one which was cut off is finished, and
not made twice, when it is asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.tracking import json_files
from rl_training.tracking.mlflow_links import get_ui_hint
from rl_training.tracking.mlflow_store import get_or_create_experiment, make_download_directory, no_resend
from rl_training.tracking.record_schemas import MonitoringRecord

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "monitoring"
"""An experiment of its own: the steps of its runs are no environment steps, so they compare with no training."""

KIND, MONITORING = "rl_training.kind", "monitoring"
MODEL_TAG = "registered_model"

FOLDER = "evaluations"


@dataclass(frozen=True)
class RecordedEvaluation:
    """An evaluation as the monitoring run has it."""

    number: int
    """Counted from 1."""
    record: Mapping[str, Any]
    path: str
    """Of the record, among the run's artifacts."""


def read_evaluation(path: Path) -> dict[str, Any]:
    """Returns the record of an evaluation that was downloaded.

    Raises:
        TrackingError: It is damaged.
    """
    return json_files.read_record(path, MonitoringRecord)


class MonitoringRun:
    """The monitoring run of one registered model.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        run: The run.
    """

    def __init__(self, client: MlflowClient, uri: str, run: Run) -> None:
        self._client = client
        self.run_id: str = run.info.run_id
        self.ui = get_ui_hint(uri, run.info.experiment_id, run.info.run_id)

    def find(self, evaluation_id: str) -> RecordedEvaluation | None:
        """Returns the evaluation of this id; None where there is none yet."""
        for number, path in self._records():
            if path.endswith(f"_{evaluation_id}.json"):
                local = self._client.download_artifacts(self.run_id, path, str(make_download_directory()))
                return RecordedEvaluation(number, read_evaluation(Path(local)), path)
        return None

    def add(self, record: Mapping[str, Any]) -> RecordedEvaluation:
        """Adds an evaluation under the next number; the model's lock is held."""
        number = max((number for number, _ in self._records()), default=0) + 1
        path = f"{FOLDER}/{number:06d}_{record['evaluation_id']}.json"
        self._client.log_text(self.run_id, json.dumps(record, indent=2, allow_nan=False), path)
        return RecordedEvaluation(number, record, path)

    def log(self, evaluation: RecordedEvaluation, metrics: Mapping[str, float]) -> None:
        """Logs an evaluation's metrics; doing it again changes nothing, since they have the record's time."""
        from mlflow.entities import Metric

        timestamp = round(datetime.fromisoformat(evaluation.record["time"]).timestamp() * 1000)
        points = [Metric(name, value, timestamp, evaluation.number) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=points)
        self._client.set_terminated(self.run_id, "FINISHED")

    def _records(self) -> list[tuple[int, str]]:
        paths = [entry.path for entry in self._client.list_artifacts(self.run_id, FOLDER)]
        return [(int(Path(path).name.split("_")[0]), path) for path in paths]


def find_monitoring_run(client: MlflowClient, uri: str, model: str) -> MonitoringRun | None:
    """Returns the monitoring run of a registered model; None where there is none."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"tags.`{KIND}` = '{MONITORING}' and tags.{MODEL_TAG} = '{model}'"
    runs = client.search_runs(experiments, wanted, order_by=["attributes.start_time ASC"], max_results=1)
    return MonitoringRun(client, uri, runs[0]) if runs else None


def open_monitoring_run(client: MlflowClient, uri: str, model: str, env_id: str) -> MonitoringRun:
    """Returns the monitoring run of a registered model, made where there is none; the model's lock is held.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        model: The registered model's name.
        env_id: What it plays.
    """
    from mlflow.exceptions import MlflowException

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
    experiment_id = get_or_create_experiment(client, uri, EXPERIMENT)
    try:
        with no_resend():
            return MonitoringRun(
                client, uri, client.create_run(experiment_id, run_name=f"monitoring {model}", tags=tags)
            )
    except MlflowException:
        made = find_monitoring_run(client, uri, model)  # a lost reply
        if made is None:
            raise
        return made
