"""Skipping scheduled flow runs that are no longer needed: if ten were missed, only one runs."""

from __future__ import annotations

from typing import Any, cast

from prefect.runtime import deployment, flow_run
from prefect.states import Completed

SKIPPED = "Skipped"
"""The name of the final state (of type Completed) of a flow run that had nothing to do."""


def skip(reason: str) -> dict[str, Any]:
    """Returns a state for the flow to return. It ends the flow run; a caller in this process gets the state's data."""
    return cast("dict[str, Any]", Completed(name=SKIPPED, message=reason, data={"skipped": reason}))


def is_scheduled() -> bool:
    """Returns whether a schedule started this flow run."""
    from uuid import UUID

    from prefect.client.orchestration import get_client

    if flow_run.id is None:
        return False
    with get_client(sync_client=True) as client:
        return bool(client.read_flow_run(UUID(flow_run.id)).auto_scheduled)


def find_skip_reason() -> str | None:
    """Returns why this scheduled flow run can be skipped, or None if it can't.

    It can be skipped if another flow run with the same parameters has started since it was due. When there was no
    worker for some time, the server still has all flow runs that were scheduled. The concurrency limit cancels those
    that a worker takes while the first one runs; this function handles those that it takes afterwards.
    """
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter

    if flow_run.id is None or deployment.id is None or flow_run.run_count > 1:
        return None
    with get_client(sync_client=True) as client:
        ours = client.read_flow_run(UUID(flow_run.id))
        if not ours.auto_scheduled or ours.expected_start_time is None:
            return None
        due = ours.expected_start_time
        started = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(
                {"start_time": {"after_": due}, "id": {"not_any_": [ours.id]}}
            ),
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        )
    replacements = [
        run
        for run in started
        if run.run_count > 0  # a flow run that was cancelled while it waited has a start time too
        and run.state_name != SKIPPED
        and run.parameters == ours.parameters
    ]
    if not replacements:
        return None
    return f"due at {due:%Y-%m-%d %H:%M %Z}; {replacements[0].name} has started since then and replaces this flow run"
