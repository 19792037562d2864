"""Automations of the Prefect server: they mark a flow run as Crashed when its process is gone, and watch disks.

Prefect has none by default. A flow run sends a heartbeat every 30 seconds. If nothing follows one for three times as
long, its process no longer exists; a flow run that is Completed says so in an event of its own (see `emit_end`). If a
worker has taken a flow run that then never starts, the worker no longer exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from rl_training.flows.artifacts_and_events import FLOW_RUN_ENDED
from rl_training.runs.disk_space import Disk
from rl_training.services.prefect_yaml import HEARTBEAT_SECONDS, TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import WorkPool
    from prefect.events.schemas.automations import AutomationCore

DISK_LOW = "rl-training.disk.low"
"""The event of a worker whose disk has little space left."""

SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
START_SECONDS = 300
"""Time limit from the moment a worker takes a flow run until its code starts; it usually takes twelve seconds."""


def build_automations() -> list[AutomationCore]:
    """Returns the automations that must be on the server."""
    return [
        _build_automation(
            "rl-training: flow runs without a heartbeat",
            {"prefect.flow-run.heartbeat"},
            SILENCE_SECONDS,
            f"No heartbeat for {SILENCE_SECONDS} s: the process of this flow run is gone.",
        ),
        _build_automation(
            "rl-training: flow runs that never start",
            {"prefect.flow-run.Pending", "prefect.flow-run.Submitting", "prefect.flow-run.InfrastructurePending"},
            START_SECONDS,
            f"Taken by a worker and not started within {START_SECONDS} s: the worker is gone.",
        ),
        _build_disk_automation(),
    ]


def _build_disk_automation() -> AutomationCore:
    """Returns an automation that pauses the work pool of a worker whose disk fills up."""
    from prefect.events.actions import PauseWorkPool
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    trigger = EventTrigger(
        match={"prefect.resource.id": "rl-training.worker.*"},
        expect={DISK_LOW},
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(),
    )
    return AutomationCore(
        name="rl-training: a worker's disk fills up",
        description="Managed by `rl-training deploy`. Pauses the work pool, so that nothing else starts.",
        trigger=trigger,
        actions=[PauseWorkPool(source="inferred", work_pool_id=None)],
    )


def _build_automation(name: str, after: set[str], seconds: int, message: str) -> AutomationCore:
    """Returns an automation that marks a flow run as Crashed if nothing follows an event in `after` for `seconds`."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    tagged: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    trigger = EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=tagged,
        after=after,
        expect={"prefect.flow-run.*", FLOW_RUN_ENDED},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=seconds),
    )
    crash = ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message, force=False)
    return AutomationCore(
        name=name, description=f"Managed by `rl-training deploy`. {message}", trigger=trigger, actions=[crash]
    )


def install_automations(client: SyncPrefectClient, automations: Iterable[AutomationCore]) -> dict[str, str]:
    """Creates automations, or updates those that differ; an automation that a user has paused stays paused.

    Args:
        client: A client of the server.
        automations: The automations that must be there.

    Returns:
        What was done with each automation, by name: `created`, `updated` or `unchanged`.
    """
    outcomes = {}
    for wanted in automations:
        existing = client.read_automations_by_name(wanted.name)
        for duplicate in existing[1:]:
            client.delete_automation(duplicate.id)
        if not existing:
            client.create_automation(wanted)
            outcomes[wanted.name] = "created"
        elif has_same_effect(existing[0], wanted):
            outcomes[wanted.name] = "unchanged"
        else:
            client.update_automation(existing[0].id, wanted.model_copy(update={"enabled": existing[0].enabled}))
            outcomes[wanted.name] = "updated"
    return outcomes


def has_same_effect(existing: AutomationCore, wanted: AutomationCore) -> bool:
    """Returns whether two automations have the same trigger and actions; one of them may be paused."""
    same_trigger = existing.trigger.model_dump(exclude={"id"}) == wanted.trigger.model_dump(exclude={"id"})
    return same_trigger and existing.actions == wanted.actions


def announce_low_disk(disk: Disk, worker: str, pool: WorkPool) -> None:
    """Emits the event that the disk of a worker has little space left."""
    from prefect.events import emit_event

    emit_event(
        DISK_LOW,
        resource={"prefect.resource.id": f"rl-training.worker.{worker}", "prefect.resource.name": worker},
        related=[
            {
                "prefect.resource.id": f"prefect.work-pool.{pool.id}",
                "prefect.resource.name": pool.name,
                "prefect.resource.role": "work-pool",
            }
        ],
        payload={"free_bytes": disk.free, "folder": str(disk.folder), "host": os.uname().nodename},
    )
