"""`rl-training deploy`: brings a Prefect server to where the deployments of a `prefect.yaml` can run on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import UserError
from rl_training.services.crash_automations import install_automations
from rl_training.services.embedded_server import before_import, lasting_server
from rl_training.services.prefect_yaml import Deployment, default_file, read_project

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

DEPLOY_SECONDS = 600.0
POOL_TYPE = "process"


@dataclass(frozen=True)
class Deployed:
    """What is on the server now."""

    api_url: str
    file: Path
    pools: Mapping[str, str]
    """Work pools, and what was done with each."""
    automations: Mapping[str, str]
    """Automations, and what was done with each."""
    deployments: Sequence[Deployment]
    paused: Sequence[str]
    """Schedules of them that do not run, by deployment and slug: somebody has paused them, or the file does."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return {
            "api_url": self.api_url,
            "file": str(self.file),
            "work_pools": dict(self.pools),
            "automations": dict(self.automations),
            "deployments": [
                {
                    "name": deployment.name,
                    "work_pool": deployment.pool,
                    "concurrency_limit": deployment.limit,
                    "schedules": [
                        {
                            "slug": schedule.slug,
                            "timezone": schedule.zone,
                            "next": [time.isoformat() for time in schedule.times],
                        }
                        for schedule in deployment.schedules
                    ],
                }
                for deployment in self.deployments
            ],
            "paused": list(self.paused),
        }

    def lines(self) -> list[str]:
        """Returns it for people."""
        pool = next(iter(self.pools))
        return [
            *(f"work pool {name}: {done}" for name, done in self.pools.items()),
            *(f"automation {name!r}: {done}" for name, done in self.automations.items()),
            f"{len(self.deployments)} deployments of {self.file} at {self.api_url}:",
            *(f"  {line}" for deployment in self.deployments for line in deployment.lines()),
            *(f"paused, does not run: {schedule}" for schedule in self.paused),
            "",
            f"their runs need a worker: rl-training worker{'' if pool == 'rl-training' else f' --pool {pool}'}",
            f"to run one: prefect deployment run '{self.deployments[0].name}' --watch",
        ]


def deploy(file: Path | None = None) -> Deployed:
    """Makes work pools, automations and deployments, or sets them right; what is as it shall be stays.

    Args:
        file: A `prefect.yaml`; by default that of the working directory, or else the one that came with the package.

    Raises:
        UserError: The file has faults (a line each), there is no Prefect server, or it refuses something.
    """
    with before_import():
        file = (file or default_file()).absolute()
        deployments = read_project(file, datetime.now().astimezone())
        with lasting_server() as (api_url, client):
            pools = {name: _make_pool(client, name) for name in dict.fromkeys(one.pool for one in deployments)}
            automations = install_automations(client)
            _deploy(file)
            paused = [schedule for deployment in deployments for schedule in _paused(client, deployment)]
    return Deployed(api_url, file, pools, automations, deployments, paused)


def _make_pool(client: SyncPrefectClient, name: str) -> str:
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


def _deploy(file: Path) -> None:
    """Has Prefect deploy the file; it is the one that knows how."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEPLOY_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(f"Prefect could not deploy {file}:\n{(done.stdout + done.stderr).strip()}")


def _paused(client: SyncPrefectClient, deployment: Deployment) -> list[str]:
    """Returns the schedules of a deployment that do not run.

    Raises:
        UserError: The server does not have it: Prefect leaves out what it can't read, and calls that a success.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        there = client.read_deployment_by_name(deployment.name)
    except ObjectNotFound:
        raise UserError(f"Prefect deployed the file and left {deployment.name} out; see `prefect deploy`") from None
    return [
        f"{deployment.name}, schedule {schedule.slug or schedule.id}"
        for schedule in there.schedules
        if there.paused or not schedule.active
    ]
