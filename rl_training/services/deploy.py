"""`rl-training deploy`: sets up a Prefect server for the deployments of a `prefect.yaml`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import UserError
from rl_training.services.crash_automations import build_automations, install_automations
from rl_training.services.moved_entrypoints import update_entrypoints
from rl_training.services.notifications import build_notifications, find_block
from rl_training.services.prefect_environment import prepare_prefect
from rl_training.services.prefect_yaml import Deployment, find_prefect_yaml, read_prefect_yaml
from rl_training.services.user_server import connect_to_user_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

DEPLOY_SECONDS = 600.0
POOL_TYPE = "process"


@dataclass(frozen=True)
class DeployResult:
    """The state of the server after `deploy`."""

    api_url: str
    file: Path
    pools: Mapping[str, str]
    """What was done with each work pool, by name."""
    automations: Mapping[str, str]
    """What was done with each automation, by name."""
    deployments: Sequence[Deployment]
    paused: Sequence[str]
    """Schedules that do not run because a user or the file has paused them, by deployment and slug."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {
            "api_url": self.api_url,
            "file": str(self.file),
            "work_pools": dict(self.pools),
            "automations": dict(self.automations),
            "deployments": [
                {
                    "name": deployment.name,
                    "work_pool": deployment.pool,
                    "work_queue": deployment.queue,
                    "concurrency_limit": deployment.limit,
                    "schedules": [
                        {
                            "slug": schedule.slug,
                            "timezone": schedule.zone,
                            "next": [] if schedule.paused else [time.isoformat() for time in schedule.times],
                        }
                        for schedule in deployment.schedules
                    ],
                }
                for deployment in self.deployments
            ],
            "paused": list(self.paused),
        }

    def lines(self) -> list[str]:
        """Returns the result as text."""
        pool = next(iter(self.pools))
        return [
            *(f"work pool {name}: {outcome}" for name, outcome in self.pools.items()),
            *(f"automation {name!r}: {outcome}" for name, outcome in self.automations.items()),
            f"{len(self.deployments)} deployments of {self.file} at {self.api_url}:",
            *(f"  {line}" for deployment in self.deployments for line in deployment.lines()),
            *(f"paused, does not run: {schedule}" for schedule in self.paused),
            "",
            f"flow runs need a worker: rl-training worker{'' if pool == 'rl-training' else f' --pool {pool}'}",
            f"start a flow run: prefect deployment run '{self.deployments[0].name}' --watch",
        ]


def deploy(file: Path | None = None, *, notify: str | None = None) -> DeployResult:
    """Creates work pools, automations and deployments, or updates those that differ.

    Args:
        file: A `prefect.yaml`; by default the one in the working directory, or else the one in the package.
        notify: The type and name of a notification block, such as `slack-webhook/team`, that tells people about failed
            runs, promotions and the like. By default, notifications stay as they are on the server.

    Raises:
        UserError: The file has faults (one line for each), there is no such block or no Prefect server, or the server
            refuses a request.
    """
    with prepare_prefect():
        file = (file or find_prefect_yaml()).absolute()
        deployments = read_prefect_yaml(file, datetime.now().astimezone())
        with connect_to_user_server() as (api_url, client):
            wanted = build_automations()
            if notify is not None:
                from prefect.settings import PREFECT_UI_URL

                wanted += build_notifications(find_block(client, notify), str(PREFECT_UI_URL.value()))
            names = dict.fromkeys(deployment.pool for deployment in deployments)
            pools = {name: _create_pool(client, name) for name in names}
            automations = install_automations(client, wanted)
            _run_prefect_deploy(file)
            update_entrypoints(client)
            paused = [_find_paused(client, deployment) for deployment in deployments]
    marked = [_mark_paused(deployment, slugs) for deployment, slugs in zip(deployments, paused, strict=True)]
    shown = [f"{d.name}, schedule {slug}" for d, slugs in zip(deployments, paused, strict=True) for slug in slugs]
    return DeployResult(api_url, file, pools, automations, marked, shown)


def _create_pool(client: SyncPrefectClient, name: str) -> str:
    """Creates a work pool if it does not exist, and returns what was done."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type=POOL_TYPE, base_job_template=template))
    except ObjectAlreadyExists:
        kind = client.read_work_pool(name).type
        return "unchanged" if kind == POOL_TYPE else f"unchanged, of type {kind}"
    return "created"


def _run_prefect_deploy(file: Path) -> None:
    """Runs `prefect deploy` for the file, because only that command implements all of its keys.

    Like the program `prefect`, it imports nothing from the working directory.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEPLOY_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(f"`prefect deploy` failed for {file}:\n{(done.stdout + done.stderr).strip()}")


def _mark_paused(deployment: Deployment, slugs: Sequence[str]) -> Deployment:
    """Returns a deployment whose schedules tell whether they run."""
    schedules = [replace(schedule, paused=schedule.slug in slugs) for schedule in deployment.schedules]
    return replace(deployment, schedules=tuple(schedules))


def _find_paused(client: SyncPrefectClient, deployment: Deployment) -> list[str]:
    """Returns the slugs, or ids, of a deployment's schedules that do not run.

    Raises:
        UserError: The deployment is not on the server. `prefect deploy` skips entries that it can't read and reports
            success.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        deployed = client.read_deployment_by_name(deployment.name)
    except ObjectNotFound:
        raise UserError(
            f"`prefect deploy` skipped {deployment.name} without an error; run it by hand to see why"
        ) from None
    return [
        str(schedule.slug or schedule.id) for schedule in deployed.schedules if deployed.paused or not schedule.active
    ]
