"""Finds what must stay in MLflow: the runs and models of registered versions, and runs that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_training.api.run_listing import name_state
from rl_training.tracking.mlflow_names import FLOW_RUN
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import PAGE_SIZE, iterate_runs

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient


@dataclass(frozen=True)
class Needed:
    """What registered versions need. Champions and versions with an alias are among them."""

    run_ids: frozenset[str]
    """The MLflow runs from which versions were registered."""
    run_uids: frozenset[str]
    """The identities of the same runs."""
    model_ids: frozenset[str]
    """The logged models that hold the versions' files."""
    locations: frozenset[str]
    """The addresses of these files."""


def find_needed(client: MlflowClient) -> Needed:
    """Returns what the registered versions of a store need."""
    versions = list(_iterate_versions(client))
    return Needed(
        frozenset(version.run_id for version in versions if version.run_id),
        frozenset(uid for version in versions if (uid := version.tags.get(RUN_UID))),
        frozenset(model_id for version in versions if (model_id := version.model_id)),
        frozenset(version.source.rstrip("/") for version in versions if version.source),
    )


def find_resumable_flow_runs(client: MlflowClient) -> set[str]:
    """Returns the ids of flow runs that trained a run which is not complete; a retry of such a flow run resumes it."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return {
        run.data.tags[FLOW_RUN]
        for run in iterate_runs(client, experiments, f"tags.`{FLOW_RUN}` LIKE '%'")
        if name_state(run.info.status, run.data.tags.get("stop_reason")) != "finished"
    }


def _iterate_versions(client: MlflowClient) -> Iterator[ModelVersion]:
    token, more = None, True
    while more:
        page = client.search_model_versions(max_results=PAGE_SIZE, page_token=token)
        yield from page
        token, more = page.token, bool(page.token)
