"""Finds flow runs on the Prefect server that ended some time ago, and removes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rl_training.maintenance.items import Findings, Item, StillNeeded
from rl_training.services.embedded_server import provide_server
from rl_training.services.prefect_environment import prepare_prefect
from rl_training.services.prefect_yaml import TAG
from rl_training.services.user_server import connect_to_user_server
from rl_training.system.paths import prefect_root

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

PAGE = 200
"""The number of flow runs that one request asks for."""
ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]


@contextmanager
def reach_flow_runs() -> Iterator[str | None]:
    """Connects Prefect's client to the server whose flow runs are cleaned, and yields the tag of ours there.

    If the user has set up no server, that is the embedded one, if it has ever run; all of its flow runs are ours.

    Raises:
        UserError: The embedded server did not start, or the user's server does not answer.
    """
    with prepare_prefect(), ExitStack() as stack:
        from prefect.settings import PREFECT_API_URL

        embedded = PREFECT_API_URL.value() is None and (prefect_root() / "prefect.db").exists()
        if embedded:
            stack.enter_context(provide_server())
        yield None if embedded else TAG


def find_flow_runs(older_than: timedelta, resumable: set[str], tag: str | None = TAG) -> Findings:
    """Returns the flow runs that may go; none if there is no server.

    Args:
        older_than: Only flow runs that ended so long ago.
        resumable: The ids of flow runs whose training can be resumed by a retry.
        tag: The tag of the flow runs that are ours; None if all of them are.

    Raises:
        UserError: The server does not answer.
    """
    from prefect.settings import PREFECT_API_URL

    findings = Findings()
    if PREFECT_API_URL.value() is None:
        findings.notes.append("no Prefect server is set up or was used, so no flow runs are looked for")
        return findings
    with connect_to_user_server() as (_, client):
        read_flow = cache(client.read_flow)
        for run in _iterate_ended(client, datetime.now(UTC) - older_than, tag):
            if str(run.id) in resumable:
                findings.kept["flow run: a retry resumes their training"] += 1
            else:
                remove = partial(_remove, run.id, run.end_time)
                shown = _describe(read_flow(run.flow_id).name, run)
                findings.items.append(Item("flow run", str(run.id), None, remove, shown))
    return findings


def _describe(flow: str, run: FlowRun) -> str:
    end = "" if run.end_time is None else f", ended {run.end_time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{flow}/{run.name}{end}"


def _iterate_ended(client: SyncPrefectClient, before: datetime, tag: str | None) -> Iterator[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    wanted: dict[str, Any] = {"state": {"type": {"any_": ENDED}}, "end_time": {"before_": before}}
    if tag is not None:
        wanted["tags"] = {"all_": [tag]}
    old, offset = FlowRunFilter.model_validate(wanted), 0
    while page := client.read_flow_runs(flow_run_filter=old, sort=FlowRunSort.END_TIME_DESC, limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def _remove(flow_run_id: UUID, end_time: datetime | None) -> None:
    """Removes a flow run with its logs.

    Raises:
        StillNeeded: It was retried meanwhile.
        UserError: The server does not answer.
    """
    from prefect.exceptions import ObjectNotFound

    with connect_to_user_server() as (_, client):
        try:
            run = client.read_flow_run(flow_run_id)
            if run.state is None or not run.state.is_final() or run.end_time != end_time:
                raise StillNeeded(f"flow run {flow_run_id} was retried")
            client.delete_flow_run(flow_run_id)
        except ObjectNotFound:
            return  # somebody else has removed it
