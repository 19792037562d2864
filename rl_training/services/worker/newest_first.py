"""The order in which a worker starts the flow runs that it has missed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse

NEVER = datetime.min.replace(tzinfo=UTC)


class NewestFirst:
    """Has the newest of a deployment's missed flow runs start first.

    When there was no worker for some time, the server has a flow run for each time at which one was due. The first one
    that starts makes the others needless: the deployment's limit cancels those that are taken while it runs, and later
    ones skip themselves. So a poll passes on the newest alone, and the next polls the others.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[UUID | None, str], datetime] = {}

    def arrange(self, responses: Sequence[WorkerFlowRunResponse]) -> list[WorkerFlowRunResponse]:
        """Returns the flow runs to start now, of those that are due; flow runs by hand keep their places."""
        groups: dict[tuple[UUID | None, str], list[WorkerFlowRunResponse]] = {}
        for response in responses:
            if response.flow_run.auto_scheduled:
                groups.setdefault(_identify(response.flow_run), []).append(response)
        for identity, group in groups.items():
            group.sort(key=lambda response: _get_due(response.flow_run))
            newest = _get_due(group[-1].flow_run)
            if newest > self._newest.get(identity, NEVER):
                self._newest[identity] = newest
                del group[:-1]
        arranged = []
        for response in responses:
            if not response.flow_run.auto_scheduled:
                arranged.append(response)
            elif group := groups[_identify(response.flow_run)]:
                arranged.append(group.pop())
        return arranged


def _identify(run: FlowRun) -> tuple[UUID | None, str]:
    """Returns what two flow runs have in common if one can replace the other."""
    return run.deployment_id, json.dumps(run.parameters, sort_keys=True, default=str)


def _get_due(run: FlowRun) -> datetime:
    return run.expected_start_time or NEVER
