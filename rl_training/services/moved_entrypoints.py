"""Deployments of an earlier version, which installed the flows as a top-level package `flows`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

logger = logging.getLogger(__name__)

MOVED = {
    f"flows.{name}.{name}_flow": f"rl_training.flows.{name}.{name}_flow"
    for name in ("train", "resume", "evaluate", "promote", "retrain")
}
"""The new entrypoint for each old one."""
PAGE = 200
"""The largest number of deployments that Prefect returns at a time."""


def has_moved(deployment: DeploymentResponse) -> bool:
    """Returns whether a deployment names a flow of this package by its old entrypoint.

    A deployment with pull steps brings code along, and `flows` may be a package in that code.
    """
    return deployment.entrypoint in MOVED and not deployment.pull_steps


def update_entrypoints(client: SyncPrefectClient) -> None:
    """Gives each deployment with an old entrypoint the new one, so that its flow runs can start."""
    from prefect.client.schemas.actions import DeploymentUpdate

    offset = 0
    while page := client.read_deployments(limit=PAGE, offset=offset):
        for deployment in filter(has_moved, page):
            entrypoint = MOVED[str(deployment.entrypoint)]
            client.update_deployment(deployment.id, DeploymentUpdate(entrypoint=entrypoint))
            logger.warning("deployment %r of an earlier version now runs %s", deployment.name, entrypoint)
        offset += len(page)
