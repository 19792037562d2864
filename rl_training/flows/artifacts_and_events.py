"""Prefect artifacts and events: artifacts about champions for people to read, events for automations to react to.

They are not essential. If Prefect does not accept one, a warning is logged and the flow continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.events.related import tags_as_related_resources
from prefect.logging import get_run_logger

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

    from rl_training.api.promotion import PromotionResult
    from rl_training.promotion.monitoring import MonitoringResult
    from rl_training.runtime.evaluation import EvaluationResult

CHAMPION_PROMOTED = "rl.champion.promoted"
"""Event: a version has become champion. The payload is the decision of `promote --json` and the version's `page`."""
CANDIDATE_REJECTED = "rl.candidate.rejected"
"""Event: a candidate was not promoted, by the verdict REJECT or HOLD. The payload is that of a promotion."""
CHAMPION_DROPPED = "rl.champion.dropped"
"""Event: the champion plays worse than when it was promoted. The payload is the evaluation."""
FLOW_RUN_ENDED = "rl.flow-run.ended"
"""Event: a flow run is Completed and sends no more heartbeats."""


def publish_promotion(result: PromotionResult, *, link: bool) -> None:
    """Publishes a promotion decision: a report, a table of both players' episodes, and an event.

    Args:
        result: The decision.
        link: Whether to link to the candidate's run too, which a flow that trains has already done.
    """
    from rl_training.tracking.mlflow_links import get_version_url
    from rl_training.tracking.mlflow_store import resolve_tracking_uri

    promotion, version = result.to_dict(), get_version_url(resolve_tracking_uri(), result.model, result.version)
    if result.moved:
        with _log_errors():
            _emit(CHAMPION_PROMOTED, {**promotion, "page": version}, result.decision_id)
    elif result.verdict.kind != "PROMOTE":
        with _log_errors():
            _emit(CANDIDATE_REJECTED, {**promotion, "page": version}, result.decision_id)
    with _log_errors():
        from rl_training.api.markdown_report import format_promotion_report
        from rl_training.tracking.mlflow_run import get_run_url

        page = get_run_url(result.run_id)
        description = f"{result.verdict.kind}: {result.model}, version {result.version}"
        create_markdown_artifact(
            format_promotion_report(promotion, page, version), key="promotion-verdict", description=description
        )
        create_table_artifact(_join_tables(result), key="promotion-episodes", description=description)
        if link:
            publish_run_link(page)


def publish_monitoring(result: MonitoringResult) -> None:
    """Publishes an evaluation: a report, a table of its episodes, and an event for a champion that plays worse."""
    evaluation = result.to_dict()
    if result.drop.dropped and result.is_champion:
        with _log_errors():
            _emit(CHAMPION_DROPPED, evaluation, result.evaluation_id)
    with _log_errors():
        from rl_training.api.markdown_report import format_monitoring_report

        description = (
            f"Evaluation {result.number} of {result.model}, version {result.version}" if result.model else "Evaluation"
        )
        create_markdown_artifact(format_monitoring_report(evaluation), key="evaluation-report", description=description)
        create_table_artifact(_build_table(result.evaluation), key="evaluation-episodes", description=description)
    publish_run_link(result.ui)


def publish_rollback(rollback: Mapping[str, Any]) -> None:
    """Publishes a report of a rollback."""
    with _log_errors():
        from rl_training.api.markdown_report import format_rollback_report

        create_markdown_artifact(format_rollback_report(rollback), key="rollback-report", description=rollback["model"])


def publish_run_link(page: str | None) -> None:
    """Publishes a link to a run's page in MLflow, if the run has one.

    Args:
        page: The address of the page. None and a command that opens the UI are ignored.
    """
    if page is not None and page.startswith("http"):
        with _log_errors():
            create_link_artifact(page, link_text="MLflow run", key="mlflow-run", description="The run in MLflow")


def emit_end(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Emits `FLOW_RUN_ENDED`: a hook that each flow calls when it is Completed.

    Prefect's heartbeats go on while the server stores that state, which bears the time before. So the last event of a
    flow run may be a heartbeat, and an automation that waits for a sign after each heartbeat would wait in vain.
    """
    with _log_errors():
        resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"}
        emit_event(FLOW_RUN_ENDED, resource=resource, related=tags_as_related_resources(flow_run.tags))


@contextmanager
def _log_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        get_run_logger().warning("Prefect did not accept an artifact or event, the flow continues: %s", error)


def _emit(event: str, payload: dict[str, Any], identity: str) -> None:
    """Emits an event about a registered model. Its id derives from `identity`, so the server stores it only once."""
    resource = {"prefect.resource.id": f"rl-training.model.{payload['model']}", "prefect.resource.role": "model"}
    emit_event(event, resource=resource, payload=payload, id=uuid5(NAMESPACE_URL, f"{event}:{identity}"))


def _join_tables(result: PromotionResult) -> list[dict[str, Any]]:
    candidate, champion = result.candidate, result.champion
    candidate_rows = _build_table(candidate, "candidate ")
    champion_rows = repeat({}) if champion is None else _build_table(champion, "champion ")
    return [{**left, **right} for left, right in zip(candidate_rows, champion_rows, strict=False)]


def _build_table(evaluation: EvaluationResult, prefix: str = "") -> list[dict[str, Any]]:
    columns = {"return": evaluation.returns, "length": evaluation.lengths, **evaluation.numbers}
    return [
        {"seed": seed, **{f"{prefix}{name}": values[i] for name, values in columns.items()}}
        for i, seed in enumerate(evaluation.seeds)
    ]
