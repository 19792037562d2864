"""Scheduled flow runs that are not needed any more: of ten that were missed, one runs."""

from __future__ import annotations

from typing import Any, cast

from prefect.runtime import deployment, flow_run
from prefect.states import Completed

SKIPPED = "Skipped"
"""Name of the state, Completed by its type, of a flow run that had nothing to do."""


def skipped(reason: str) -> dict[str, Any]:
    """Returns the state that ends the flow run; a caller in this process gets its data, as of any result."""
    return cast("dict[str, Any]", Completed(name=SKIPPED, message=reason, data={"skipped": reason}))


def is_scheduled() -> bool:
    """Returns whether a schedule has made this flow run, and no person."""
    from uuid import UUID

    from prefect.client.orchestration import get_client

    if flow_run.id is None:
        return False
    with get_client(sync_client=True) as client:
        return bool(client.read_flow_run(UUID(flow_run.id)).auto_scheduled)


def made_up_for() -> str | None:
    """Returns why nothing is left to do for this flow run of a schedule: one like it has begun since it was due.

    Where no worker was there for a night, the server keeps all that it had scheduled. Its limit cancels what comes
    while the first of them runs; this one is for what a worker takes up afterwards.
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
        begun = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(
                {"start_time": {"after_": due}, "id": {"not_any_": [ours.id]}}
            ),
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        )
    done = [
        run
        for run in begun
        if run.run_count > 0  # one that was cancelled while it waited has a start time too
        and run.state_name != SKIPPED
        and run.parameters == ours.parameters
    ]
    if not done:
        return None
    return f"this run was due at {due:%Y-%m-%d %H:%M %Z}, and {done[0].name} has begun since: it has made up for it"
