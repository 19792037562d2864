"""`rl-training doctor`: checks the servers that flows use, and says how to fix each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rl_training.errors import UserError
from rl_training.promotion.floor_check import check_floors
from rl_training.runs.disk_space import measure_disks
from rl_training.services.crash_automations import build_automations, has_same_effect
from rl_training.services.moved_entrypoints import has_moved
from rl_training.services.prefect_environment import prepare_prefect
from rl_training.services.prefect_yaml import PARALLEL, TAG
from rl_training.services.user_server import connect_to_user_server
from rl_training.tracking.mlflow_health import CheckResult, check_clock, check_mlflow

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

MAX_DEPLOYMENTS = 200
"""The largest number of deployments that is checked."""
SLOT_STATES = ["RUNNING", "PENDING", "CANCELLING"]
"""States in which a flow run holds a slot of its deployment's concurrency limit."""
FOREIGN_ORIGIN = "http://example.org"
ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
DEPLOY = "run `rl-training deploy` to fix it"


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks."""

    findings: tuple[CheckResult, ...]

    @property
    def healthy(self) -> bool:
        """Whether no problem remains."""
        return all(finding.status != "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns the diagnosis for JSON."""
        return {"healthy": self.healthy, "findings": [finding.to_dict() for finding in self.findings]}

    def lines(self) -> list[str]:
        """Returns the diagnosis as text, one line for each finding."""
        return [finding.line() for finding in self.findings]


def diagnose(*, fix: bool = False) -> Diagnosis:
    """Checks MLflow, the champions in it, the disk and, if one is set up, the Prefect server.

    Args:
        fix: Whether to end runs in MLflow whose process no longer exists.
    """
    return Diagnosis((*_check_services(fix=fix), *check_floors(), *_check_disks()))


def _check_services(*, fix: bool) -> list[CheckResult]:
    findings: list[CheckResult] = []
    with prepare_prefect():
        from prefect.settings import PREFECT_API_URL

        if PREFECT_API_URL.value() is None:
            text = "no server is set up, so each flow of the command line starts its own; there are no schedules"
            findings.append(CheckResult("prefect", "note", text, "set PREFECT_API_URL to use deployments"))
            return [*findings, *check_mlflow(fix=fix)]
        try:
            with connect_to_user_server() as (shown, client):
                findings.append(CheckResult("prefect", "ok", f"{shown} answers"))
                findings += _check_prefect(client)
                findings += check_mlflow(fix=fix, gone=lambda flow_run_id: _has_ended(client, flow_run_id))
        except UserError as error:
            findings.append(CheckResult("prefect", "problem", str(error)))
            findings += check_mlflow(fix=fix)
    return findings


def _check_prefect(client: SyncPrefectClient) -> Iterator[CheckResult]:
    yield _check_versions(client)
    yield check_clock("the Prefect server", client.request("GET", "/admin/version").headers.get("Date"))
    if "Access-Control-Allow-Origin" in _read_headers(client, {"Origin": FOREIGN_ORIGIN}):
        text = "any web page that is open in a browser which reaches the server can use it"
        yield CheckResult("prefect", "note", text, f"start it with {ORIGINS} set to the addresses of its own pages")
    if _read_headers(client, {"Authorization": "none"}):
        text = "it has no password, so everyone who can reach it, and every user of its machine, can start flow runs"
        yield CheckResult("prefect", "note", text, f"start it with {PASSWORD} set (docs/deployment.md)")
    deployments = [
        deployment for deployment in client.read_deployments(limit=MAX_DEPLOYMENTS) if TAG in (deployment.tags or [])
    ]
    if not deployments:
        yield CheckResult("deployments", "problem", f"none has the tag {TAG}", "`rl-training deploy` creates them")
    else:
        yield CheckResult("deployments", "ok", f"{len(deployments)} with the tag {TAG}")
        yield from _check_entrypoints(client, deployments)
        yield from _check_limits(client, deployments)
    for pool in sorted({deployment.work_pool_name for deployment in deployments if deployment.work_pool_name}):
        mine = [deployment for deployment in deployments if deployment.work_pool_name == pool]
        yield from _check_pool(client, pool, mine)
    yield from _check_automations(client)


def _read_headers(client: SyncPrefectClient, headers: dict[str, str]) -> Mapping[str, str]:
    """Returns the headers of the server's answer to a request with these headers; none if the server refuses it."""
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


def _make_full_name(client: SyncPrefectClient, deployment: DeploymentResponse) -> str:
    return f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"


def _check_entrypoints(client: SyncPrefectClient, deployments: list[DeploymentResponse]) -> Iterator[CheckResult]:
    for deployment in filter(has_moved, deployments):
        text = f"{_make_full_name(client, deployment)} was made by an earlier version and names {deployment.entrypoint}"
        yield CheckResult("deployments", "problem", text, DEPLOY)


def _check_limits(client: SyncPrefectClient, deployments: list[DeploymentResponse]) -> Iterator[CheckResult]:
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter

    sound = True
    for deployment in deployments:
        limit, name = deployment.global_concurrency_limit, _make_full_name(client, deployment)
        if limit is None or not limit.active:
            if name.startswith(f"{PARALLEL}/"):
                continue
            sound = False
            text = f"{name} has no concurrency limit"
            yield CheckResult(
                "limits", "problem", text, "set concurrency_limit in prefect.yaml, then `rl-training deploy`"
            )
            continue
        if not limit.active_slots:
            continue
        holders = client.count_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": SLOT_STATES}}}),
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        )
        if holders < limit.active_slots:
            sound = False
            text = f"{name}: a slot is taken, and no flow run holds it"
            yield CheckResult("limits", "note", text, "the server frees it within five minutes")
    if sound:
        yield CheckResult("limits", "ok", "each deployment that needs a concurrency limit has one")


def _check_pool(client: SyncPrefectClient, name: str, deployments: list[DeploymentResponse]) -> Iterator[CheckResult]:
    from prefect.exceptions import ObjectNotFound

    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        yield CheckResult("work pool", "problem", f"{name} does not exist", DEPLOY)
        return
    if pool.is_paused:
        advice = f"`prefect work-pool resume {name}` lets its flow runs start again"
        yield CheckResult("work pool", "problem", f"{name} is paused", advice)
    else:
        yield CheckResult("work pool", "ok", f"{name}, of type {pool.type}")
    workers = client.read_workers_for_work_pool(name)
    online = [worker for worker in workers if str(getattr(worker.status, "value", worker.status)) == "ONLINE"]
    for worker in online:
        assert worker.last_heartbeat_time is not None  # it is online
        age = (datetime.now(UTC) - worker.last_heartbeat_time).total_seconds()
        yield CheckResult("workers", "ok", f"{worker.name!r} of {name}, last heartbeat {max(0.0, age):.0f} s ago")
    start = "`rl-training worker` starts one"
    if not workers:
        yield CheckResult("workers", "note", f"{name} has none, so nothing runs; those that ended well are gone", start)
    elif not online:
        last = max((worker.last_heartbeat_time for worker in workers if worker.last_heartbeat_time), default=None)
        since = f"since {last:%Y-%m-%d %H:%M:%S %Z}" if last is not None else "ever"
        yield CheckResult("workers", "problem", f"no worker of {name} has sent a heartbeat {since}", start)
    if not online:
        return
    needed = Counter(deployment.work_queue_name for deployment in deployments if deployment.work_queue_name)
    for queue in client.read_work_queues(work_pool_name=name):
        if needed[queue.name] and getattr(queue.status, "value", queue.status) == "NOT_READY":
            text = (
                f"no worker of {name} takes flow runs of queue {queue.name}, as {needed[queue.name]} deployments need"
            )
            yield CheckResult(
                "workers", "problem", text, f"`rl-training worker --pool {name} --queue {queue.name}` does"
            )


def _check_automations(client: SyncPrefectClient) -> Iterator[CheckResult]:
    for wanted in build_automations():
        existing = client.read_automations_by_name(wanted.name)
        if not existing:
            yield CheckResult("automations", "problem", f"{wanted.name!r} does not exist", DEPLOY)
        elif not has_same_effect(existing[0], wanted):
            yield CheckResult("automations", "problem", f"{wanted.name!r} has been changed", DEPLOY)
        elif not existing[0].enabled:
            advice = f"`prefect automation resume '{wanted.name}'` turns it on again"
            yield CheckResult("automations", "problem", f"{wanted.name!r} is paused", advice)
        else:
            yield CheckResult("automations", "ok", repr(wanted.name))


def _has_ended(client: SyncPrefectClient, flow_run_id: str) -> bool:
    """Returns whether a flow run is in a final state."""
    from prefect.exceptions import ObjectNotFound

    try:
        state = client.read_flow_run(UUID(flow_run_id)).state
    except (ObjectNotFound, ValueError):
        return False  # it belongs to another server
    return state is not None and state.is_final()


def _check_disks() -> Iterator[CheckResult]:
    try:
        disks = measure_disks()
    except UserError as error:
        yield CheckResult("disk", "problem", str(error))
        return
    for disk in disks:
        if disk.is_low:
            text = f"only {disk}, expected {disk.least / 1e9:g} GB"
            yield CheckResult("disk", "problem", text, "make room, for example with `rl-training clean`")
        else:
            yield CheckResult("disk", "ok", str(disk))
