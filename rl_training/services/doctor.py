"""`rl-training doctor`: looks at the services that flows need, and says what to do about what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rl_training.errors import UserError
from rl_training.services.crash_automations import automations, is_as_wanted
from rl_training.services.embedded_server import before_import, lasting_server
from rl_training.services.prefect_yaml import TAG
from rl_training.tracking.mlflow_health import CheckResult, check_clock, check_mlflow

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

LOOKED_AT = 200
"""Deployments that are looked at, at most."""
SLOT_STATES = ["RUNNING", "PENDING", "CANCELLING"]
"""Of the flow runs that hold a slot of their deployment's limit."""
STRANGER = "http://example.org"
ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
DEPLOY = "`rl-training deploy` sets it right"


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    findings: tuple[CheckResult, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is no problem left."""
        return all(finding.status != "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return {"healthy": self.healthy, "findings": [finding.to_dict() for finding in self.findings]}

    def lines(self) -> list[str]:
        """Returns it for people."""
        return [finding.line() for finding in self.findings]


def examine(*, fix: bool = False) -> Diagnosis:
    """Looks at the Prefect server, if one is set up, and at MLflow.

    Args:
        fix: Whether to end in MLflow the runs that nothing else will end.
    """
    findings: list[CheckResult] = []
    with before_import():
        from prefect.settings import PREFECT_API_URL

        if PREFECT_API_URL.value() is None:
            text = "no server is set up, so each flow of the command line starts its own; there are no schedules"
            findings.append(CheckResult("prefect", "note", text, "set PREFECT_API_URL to use deployments"))
            findings += check_mlflow(fix=fix)
            return Diagnosis(tuple(findings))
        try:
            with lasting_server() as (shown, client):
                findings.append(CheckResult("prefect", "ok", f"{shown} answers"))
                findings += _check_prefect(client)
                findings += check_mlflow(fix=fix, gone=lambda flow_run_id: _has_ended(client, flow_run_id))
        except UserError as error:
            findings.append(CheckResult("prefect", "problem", str(error)))
            findings += check_mlflow(fix=fix)
    return Diagnosis(tuple(findings))


def _check_prefect(client: SyncPrefectClient) -> Iterator[CheckResult]:
    yield _check_versions(client)
    yield check_clock("the Prefect server", client.request("GET", "/admin/version").headers.get("Date"))
    if "Access-Control-Allow-Origin" in _headers_for(client, {"Origin": STRANGER}):
        text = "a page of any site, open in a browser that reaches the server, may use it"
        yield CheckResult("prefect", "note", text, f"start it with {ORIGINS} set to the addresses of its own pages")
    if _headers_for(client, {"Authorization": "none"}):
        text = "it has no password: every user of its machine, and whoever else reaches it, may start flow runs"
        yield CheckResult("prefect", "note", text, f"start it with {PASSWORD} set (docs/deployment.md)")
    deployments = [
        deployment for deployment in client.read_deployments(limit=LOOKED_AT) if TAG in (deployment.tags or [])
    ]
    if not deployments:
        yield CheckResult("deployments", "problem", f"none with the tag {TAG}", "`rl-training deploy` makes them")
    else:
        yield CheckResult("deployments", "ok", f"{len(deployments)} with the tag {TAG}")
        yield from _check_limits(client, deployments)
    for pool in sorted({deployment.work_pool_name for deployment in deployments if deployment.work_pool_name}):
        yield from _check_pool(client, pool)
    yield from _check_automations(client)


def _headers_for(client: SyncPrefectClient, headers: dict[str, str]) -> Mapping[str, str]:
    """Returns the headers with which the server answers such a request; none if it refuses it."""
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        return client.request("GET", "/admin/version", headers=headers).headers
    except PrefectHTTPStatusError:
        return {}


def _check_versions(client: SyncPrefectClient) -> CheckResult:
    from packaging.version import parse

    ours, theirs = client.client_version(), client.api_version()
    text = f"server {theirs}, client {ours}"
    if parse(ours).release[:2] == parse(theirs).release[:2]:
        return CheckResult("prefect", "ok", text)
    return CheckResult("prefect", "problem", text, "install the same version in both places (constraints.txt)")


def _check_limits(client: SyncPrefectClient, deployments: list[DeploymentResponse]) -> Iterator[CheckResult]:
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter

    def name(deployment: DeploymentResponse) -> str:
        return f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"

    sound = True
    for deployment in deployments:
        limit = deployment.global_concurrency_limit
        if limit is None or not limit.active:
            sound = False
            text = f"{name(deployment)} has no concurrency limit"
            yield CheckResult("limits", "problem", text, f"{DEPLOY}, where prefect.yaml has its concurrency_limit")
            continue
        if not limit.active_slots:
            continue
        holders = client.count_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": SLOT_STATES}}}),
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        )
        if holders < limit.active_slots:
            sound = False
            text = f"{name(deployment)}: a slot is held and no flow run has it"
            yield CheckResult("limits", "note", text, "the server frees it within five minutes")
    if sound:
        yield CheckResult("limits", "ok", "each deployment has its concurrency limit")


def _check_pool(client: SyncPrefectClient, name: str) -> Iterator[CheckResult]:
    from prefect.exceptions import ObjectNotFound

    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        yield CheckResult("work pool", "problem", f"{name} is not there", DEPLOY)
        return
    if pool.is_paused:
        advice = f"`prefect work-pool resume {name}` has its flow runs started again"
        yield CheckResult("work pool", "problem", f"{name} is paused", advice)
    else:
        yield CheckResult("work pool", "ok", f"{name}, of type {pool.type}")
    workers = client.read_workers_for_work_pool(name)
    online = [worker for worker in workers if str(getattr(worker.status, "value", worker.status)) == "ONLINE"]
    for worker in online:
        assert worker.last_heartbeat_time is not None  # or it would not be online
        age = (datetime.now(UTC) - worker.last_heartbeat_time).total_seconds()
        yield CheckResult("workers", "ok", f"{worker.name!r} of {name}, last heartbeat {max(0.0, age):.0f} s ago")
    if not online:
        last = max((worker.last_heartbeat_time for worker in workers if worker.last_heartbeat_time), default=None)
        since = f"since {last:%Y-%m-%d %H:%M:%S %Z}" if last is not None else "ever"
        text = f"none of {name} has sent a heartbeat {since}, so nothing runs"
        yield CheckResult("workers", "problem", text, "`rl-training worker` starts one")


def _check_automations(client: SyncPrefectClient) -> Iterator[CheckResult]:
    for wanted in automations():
        there = client.read_automations_by_name(wanted.name)
        if not there:
            yield CheckResult("automations", "problem", f"{wanted.name!r} is not there", DEPLOY)
        elif not is_as_wanted(there[0], wanted):
            yield CheckResult("automations", "problem", f"{wanted.name!r} is not as it shall be", DEPLOY)
        elif not there[0].enabled:
            advice = f"`prefect automation resume '{wanted.name}'` has it work again"
            yield CheckResult("automations", "problem", f"{wanted.name!r} is paused", advice)
        else:
            yield CheckResult("automations", "ok", repr(wanted.name))


def _has_ended(client: SyncPrefectClient, flow_run_id: str) -> bool:
    """Returns whether a flow run is in a state that it does not leave by itself."""
    from prefect.exceptions import ObjectNotFound

    try:
        state = client.read_flow_run(UUID(flow_run_id)).state
    except (ObjectNotFound, ValueError):
        return False  # of another server
    return state is not None and state.is_final()
