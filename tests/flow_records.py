"""A tiny task for flows, and readers of what a Prefect server records about their runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from tiny_tasks import PLAIN
from waiting import LIMIT

TINY: dict[str, Any] = {"algo": "ppo", "network": {"hidden": [8]}, "checkpoint": {"every": 500}, **PLAIN}


def task_states(flow_run_id: Any, *, expected: int) -> list[tuple[str, str, int]]:
    """Name, state and number of runs of each task, in order; the server takes them in with a delay."""

    def read() -> list[tuple[str, str, int]]:
        with get_client(sync_client=True) as client:
            flow_runs = FlowRunFilter.model_validate({"id": {"any_": [str(flow_run_id)]}})
            runs = client.read_task_runs(flow_run_filter=flow_runs, task_run_filter=TaskRunFilter())
        runs = [run for run in runs if run.start_time is not None]
        runs.sort(key=lambda run: run.start_time)
        return [(run.name.rsplit("-", 1)[0], run.state_name or "", run.run_count) for run in runs]

    return eventually(
        read, lambda states: len(states) == expected and all(state != "Running" for _, state, _ in states)
    )


def artifacts(flow_run_id: Any, kind: str) -> dict[str, Any]:
    """The artifacts of a kind that a flow run and its tasks have made, by key."""
    with get_client(sync_client=True) as client:
        answer = client.request(
            "POST", "/artifacts/filter", json={"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
        )
    return {artifact["key"]: artifact["data"] for artifact in answer.json() if artifact["type"] == kind}


def events(name: str, resource_id: str, *, expected: int) -> list[dict[str, Any]]:
    """The payloads of the events of a name on a resource, the oldest first; the server takes them in with a delay."""
    wanted = {"filter": {"event": {"name": [name]}, "resource": {"id": [resource_id]}, "order": "ASC"}}

    def read() -> list[dict[str, Any]]:
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/events/filter", json=wanted).json()["events"]
        return [event["payload"] for event in found]

    return eventually(read, lambda found: len(found) >= expected)


def eventually(read: Callable[[], Any], enough: Callable[[Any], bool], seconds: float = LIMIT) -> Any:
    deadline = time.monotonic() + seconds
    while not enough(value := read()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return value
