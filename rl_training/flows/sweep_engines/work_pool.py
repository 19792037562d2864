"""Segments as flow runs of a Prefect work pool, whose workers may be on other machines."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from rl_training.errors import ConfigError, UserError, one_line
from rl_training.flows.sweep_engines.segment_task import describe_place
from rl_training.security.secrets import redact_text
from rl_training.security.untrusted_json import NotReadable, parse_json
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import from_json, to_json, to_text
from rl_training.sweeps.sweep_config import ResourcesConfig

logger = logging.getLogger(__name__)

DEPLOYMENT = "trial-flow/default"
RECORD_KEY = "trial-record"
"""Key of the artifact with the record of a segment."""
STOPPED = "The sweep was told to stop. The next attempt resumes from the newest checkpoint."


class WorkPool:
    """A deployment of trial-flow. Its work pool decides how many flow runs there are at once, and what each gets.

    The flow runs belong to the server. If the sweep's own process dies, they continue, and the next process of the
    sweep finds them by the segment that they train.

    Args:
        deployment: The full name of the deployment; by default `trial-flow/default`.
        resources: What each segment needs.

    Raises:
        UserError: There is no such deployment, or its server does not answer.
        ConfigError: The work pool can't reserve what a segment needs.
    """

    def __init__(self, deployment: str | None, resources: ResourcesConfig) -> None:
        self._deployment = deployment or DEPLOYMENT
        with get_client(sync_client=True) as client:
            try:
                found = client.read_deployment_by_name(self._deployment)
            except (ObjectNotFound, ValueError):
                raise UserError(
                    f"engine work_pool: the Prefect server has no deployment {self._deployment}; `rl-training deploy` "
                    f"creates {DEPLOYMENT}"
                ) from None
            if found.work_pool_name is None:
                raise UserError(f"engine work_pool: the deployment {self._deployment} has no work pool")
            kind = client.read_work_pool(found.work_pool_name).type
        self._variables = make_job_variables(kind, resources)

    def submit(self, segment: Segment) -> UUID:
        """Creates the segment's flow run, or finds the one that an earlier process of the sweep has created."""
        same = to_text(replace(segment, begun=True))  # whether it had begun before does not tell segments apart
        tag = f"segment:{hashlib.sha256(same.encode()).hexdigest()[:32]}"
        with get_client(sync_client=True) as client:
            before = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [tag]}}))
        for flow_run in before:
            if not _has_failed(flow_run):
                return flow_run.id
        created = run_deployment(
            self._deployment,
            parameters={"segment": to_json(segment), **describe_place()},
            flow_run_name=segment.key,
            timeout=0,
            tags=["rl-training", f"sweep:{segment.sweep_uid}", tag],
            idempotency_key=f"{tag}-{len(before)}",
            job_variables=self._variables,
        )
        assert isinstance(created, FlowRun)  # not a coroutine, because this thread runs no event loop
        return created.id

    def poll(self, handles: Mapping[str, UUID]) -> Iterator[tuple[str, RunRecord | Lost]]:
        """Yields the segments whose flow runs have ended; see `Cluster.poll`. Waits for a server that is away.

        Raises:
            UserError: A flow run has failed: its worker can't train segments of this sweep.
        """
        by_id = {flow_run_id: key for key, flow_run_id in handles.items()}
        with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
            wanted = FlowRunFilter.model_validate({"id": {"any_": list(by_id)}})
            for flow_run in client.read_flow_runs(flow_run_filter=wanted):
                if flow_run.state is None or not flow_run.state.is_final():
                    continue
                message = redact_text(one_line(flow_run.state.message or ""))
                if flow_run.state.is_failed():
                    raise UserError(f"flow run {flow_run.name} of {self._deployment} has failed: {message}")
                if flow_run.state.is_completed():
                    yield by_id[flow_run.id], _read_record(client, flow_run)
                else:
                    yield by_id[flow_run.id], Lost(f"flow run {flow_run.name} is {flow_run.state.name}: {message}")

    def stop(self, handles: Sequence[UUID]) -> None:
        """Cancels the flow runs, which save first."""
        with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
            for flow_run_id in handles:
                client.set_flow_run_state(flow_run_id, Cancelling(message=STOPPED))

    def close(self) -> None:
        """Does nothing: the server and its workers are the user's."""


def _has_failed(flow_run: FlowRun) -> bool:
    return flow_run.state_type in (StateType.CRASHED, StateType.CANCELLED, StateType.CANCELLING, StateType.FAILED)


def _read_record(client: SyncPrefectClient, flow_run: FlowRun) -> RunRecord | Lost:
    artifacts = client.read_artifacts(
        artifact_filter=ArtifactFilter.model_validate({"key": {"any_": [RECORD_KEY]}}),
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [flow_run.id]}}),
    )
    if not artifacts:
        return Lost(f"flow run {flow_run.name} has left no record")
    newest = max(artifacts, key=lambda artifact: str(artifact.created))
    try:
        rows = parse_json(newest.data if isinstance(newest.data, str) else "null", list)
        return from_json(rows[0] if rows else None, RunRecord)
    except NotReadable as error:
        return Lost(f"the record of flow run {flow_run.name} can't be read: {error}")


def make_job_variables(kind: str, resources: ResourcesConfig) -> dict[str, object]:
    """Returns the job variables with which a work pool gives a flow run its memory.

    Raises:
        ConfigError: A work pool of this type can't reserve what a segment needs.
    """
    if resources.gpus:
        raise ConfigError(
            f"resources.gpus: got {resources.gpus:g}, and the engine work_pool can't reserve GPUs; leave it out, and "
            f"give each worker its GPU by CUDA_VISIBLE_DEVICES and `rl-training worker --limit 1`"
        )
    if resources.memory_gb is None:
        return {}
    if kind == "docker":
        return {"mem_limit": f"{round(resources.memory_gb * 1e9)}b"}
    raise ConfigError(
        f"resources.memory_gb: got {resources.memory_gb:g}, and a work pool of type {kind} can't reserve memory; leave "
        f"it out, and limit the flow runs of each worker by `rl-training worker --limit`"
    )
