"""Writes a decision to MLflow: to the candidate's run (record, metrics) and version (description, tags)."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rl_training.promotion.champion_history import set_tags
from rl_training.promotion.decision import describe_version, read_verdict, record_path
from rl_training.promotion.model_registry import set_description
from rl_training.runs.evaluation_result import EvaluationResult

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

DECISION_TAG = "decision."
"""Prefix of a version's tag for each decision on it; the value is the verdict."""

FORCED_TAG = "gate.forced"

NUMBERS_TAG = "gate.numbers"


def write_decision(client: MlflowClient, version: ModelVersion, run_id: str, record: dict[str, Any]) -> None:
    """Records a decision in the candidate's run and version; the last tag marks it as complete.

    Args:
        client: MLflow's client.
        version: The candidate's version.
        run_id: The run that the candidate comes from.
        record: The record of the decision.
    """
    question, verdict = record["decision_id"], read_verdict(record)
    client.log_text(run_id, json.dumps(record, indent=2, allow_nan=False), record_path(question))
    _log_metrics(client, version, run_id, record)
    set_description(client, version, describe_version(record, client.get_run(run_id).info.run_name))
    if FORCED_TAG in version.tags:
        client.delete_model_version_tag(version.name, version.version, FORCED_TAG)
    tags = {
        "gate.verdict": verdict.kind,
        "gate.reasons": "\n".join(verdict.reasons),
        NUMBERS_TAG: json.dumps(verdict.numbers),
        "gate.judged_by": ", ".join(verdict.judged_by) or "nothing",
        "gate.record": f"runs:/{run_id}/{record_path(question)}",
        "gate.decision_id": question,
        **({} if record["forced"] is None else {FORCED_TAG: record["forced"]}),
        DECISION_TAG + question: verdict.kind,
    }
    set_tags(client, version, tags)


def _log_metrics(client: MlflowClient, version: ModelVersion, run_id: str, record: dict[str, Any]) -> None:
    """Logs the candidate's result at the step of its policy, as metrics of the run and of the logged model."""
    from mlflow.entities import Metric

    candidate = record["candidate"]
    metrics = EvaluationResult.from_dict(candidate["evaluation"]).metrics("promotion")
    timestamp = round(datetime.fromisoformat(record["time"]).timestamp() * 1000)
    points = [
        Metric(name, value, timestamp, candidate["num_timesteps"], model_id=version.model_id)
        for name, value in metrics.items()
    ]
    client.log_batch(run_id, metrics=points)
