"""What flows tell Prefect of a champion: events that automations may wait for, and artifacts for people.

None of it is the flow's work: where Prefect does not take it, the log says so and the flow goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.logging import get_run_logger

if TYPE_CHECKING:
    from rl_training.api.promotion import PromotionResult
    from rl_training.promotion.monitoring import MonitoringResult
    from rl_training.runtime.evaluation import EvaluationResult

CHAMPION_PROMOTED = "rl.champion.promoted"
"""The event of a version that has become champion; its payload is the decision, as `promote --json` prints it."""
CHAMPION_DROPPED = "rl.champion.dropped"
"""The event of a champion that plays worse than when it was promoted; its payload is the evaluation."""


def publish_promotion(result: PromotionResult, *, link: bool) -> None:
    """Shows a decision: the verdict in Markdown, a table of both players' episodes, an event for a new champion.

    Args:
        result: The decision.
        link: Whether to link the candidate's run too, where nothing else in the flow run does.
    """
    promotion = result.to_dict()
    if result.moved:
        with _tolerated():
            _emit(CHAMPION_PROMOTED, promotion, result.decision_id)
    with _tolerated():
        from rl_training.api.markdown_report import promotion_text
        from rl_training.tracking.mlflow_run import get_run_url
        from rl_training.tracking.mlflow_store import get_version_url, resolve_tracking_uri

        page = get_run_url(result.run_id)
        version = get_version_url(resolve_tracking_uri(), result.model, result.version)
        what = f"{result.verdict.kind}: {result.model}, version {result.version}"
        create_markdown_artifact(promotion_text(promotion, page, version), key="promotion-verdict", description=what)
        create_table_artifact(_both_tables(result), key="promotion-episodes", description=what)
        if link:
            link_run(page)


def publish_monitoring(result: MonitoringResult) -> None:
    """Shows an evaluation: a report in Markdown, a table of its episodes, an event for a champion that has dropped."""
    evaluation = result.to_dict()
    if result.drop.dropped and result.is_champion:
        with _tolerated():
            _emit(CHAMPION_DROPPED, evaluation, result.evaluation_id)
    with _tolerated():
        from rl_training.api.markdown_report import monitoring_text

        what = (
            f"Evaluation {result.number} of {result.model}, version {result.version}" if result.model else "Evaluation"
        )
        create_markdown_artifact(monitoring_text(evaluation), key="evaluation-report", description=what)
        create_table_artifact(_table(result.evaluation), key="evaluation-episodes", description=what)
    link_run(result.ui)


def publish_rollback(rollback: Mapping[str, Any]) -> None:
    """Shows a rollback."""
    with _tolerated():
        from rl_training.api.markdown_report import rollback_text

        create_markdown_artifact(rollback_text(rollback), key="rollback-report", description=rollback["model"])


def link_run(page: str | None) -> None:
    """Makes a link to a run's page in MLflow, where it has one.

    Args:
        page: Its address; a command that opens the UI, and None, are no address.
    """
    if page is not None and page.startswith("http"):
        with _tolerated():
            create_link_artifact(page, link_text="MLflow run", key="mlflow-run", description="The run in MLflow")


@contextmanager
def _tolerated() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        get_run_logger().warning("Prefect does not show all of it, the flow goes on: %s", error)


def _emit(event: str, payload: dict[str, Any], identity: str) -> None:
    """Emits an event of a registered model; the same again has the same id, by which the server knows it."""
    resource = {"prefect.resource.id": f"rl-training.model.{payload['model']}", "prefect.resource.role": "model"}
    emit_event(event, resource=resource, payload=payload, id=uuid5(NAMESPACE_URL, f"{event}:{identity}"))


def _both_tables(result: PromotionResult) -> list[dict[str, Any]]:
    candidate, champion = result.candidate, result.champion
    rows = _table(candidate, "candidate ")
    others = repeat({}) if champion is None else _table(champion, "champion ")
    return [{**mine, **theirs} for mine, theirs in zip(rows, others, strict=False)]


def _table(evaluation: EvaluationResult, who: str = "") -> list[dict[str, Any]]:
    episodes = zip(evaluation.seeds, evaluation.returns, evaluation.lengths, strict=True)
    return [{"seed": seed, f"{who}return": value, f"{who}length": length} for seed, value, length in episodes]
