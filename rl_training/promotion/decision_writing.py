"""Writes a decision to MLflow: to the candidate's run (record, metrics) and version (description, tags).

Versions that were rejected are removed later, so that a retraining each night does not fill the registry with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rl_training.promotion.champion_history import PROMOTED_BY, set_tags
from rl_training.promotion.decision import describe_version, read_verdict, record_path
from rl_training.promotion.model_registry import set_description
from rl_training.runs.evaluation_result import EvaluationResult
from rl_training.tracking.shipping.run_page import try_refresh_page

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

DECISION_ID_TAG = "gate.decision_id"
"""Tag of a version: the last decision on it."""
DECISION_TAG = "decision."
"""Prefix of a version's tag for each decision on it; the value is the verdict."""

FORCED_TAG = "gate.forced"

NUMBERS_TAG = "gate.numbers"

VERDICT_TAG = "gate.verdict"

KEPT_REJECTS = 3
"""Number of rejected versions that a model keeps, the newest ones."""


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
        VERDICT_TAG: verdict.kind,
        "gate.reasons": "\n".join(verdict.reasons),
        NUMBERS_TAG: json.dumps(verdict.numbers),
        "gate.judged_by": ", ".join(verdict.judged_by) or "nothing",
        "gate.record": f"runs:/{run_id}/{record_path(question)}",
        DECISION_ID_TAG: question,
        **({} if record["forced"] is None else {FORCED_TAG: record["forced"]}),
        DECISION_TAG + question: verdict.kind,
    }
    set_tags(client, version, tags)


def remove_old_rejects(client: MlflowClient, model: str) -> None:
    """Removes the rejected versions of a model but for the newest `KEPT_REJECTS`.

    A version stays if it has an alias or was ever champion. The evidence stays too: the record, the metrics and the
    checkpoint belong to the version's run. If a version can't be removed, a warning is logged.
    """
    from mlflow.exceptions import MlflowException

    try:
        named = {str(number) for number in client.get_registered_model(model).aliases.values()}
        rejected = [
            version
            for version in _list_versions(client, model)
            if version.tags.get(VERDICT_TAG) == "REJECT"
            and PROMOTED_BY not in version.tags
            and str(version.version) not in named
        ]
        rejected.sort(key=lambda version: int(version.version), reverse=True)
        for version in rejected[KEPT_REJECTS:]:
            client.delete_model_version(model, version.version)
            logger.info(
                "removed version %s of %s, which was rejected earlier; the evidence is in run %s",
                version.version,
                model,
                version.run_id,
            )
            if version.run_id:
                try_refresh_page(client, version.run_id)
    except MlflowException as error:
        logger.warning("rejected versions of %s can't be removed, and stay: %s", model, error)


def _list_versions(client: MlflowClient, model: str) -> Iterator[ModelVersion]:
    token = None
    while token != "":
        page = client.search_model_versions(f"name = '{model}'", page_token=token)
        yield from page
        token = page.token or ""


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
