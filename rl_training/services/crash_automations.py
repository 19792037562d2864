"""Automations of the Prefect server that mark a flow run as Crashed when its process is gone.

Prefect has none by default. A flow run sends a heartbeat every 30 seconds. If there is none for three times as long,
its process no longer exists; if a worker has taken a flow run that then never starts, the worker no longer exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from rl_training.services.prefect_yaml import HEARTBEAT_SECONDS, TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

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
    ]


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
        expect={"prefect.flow-run.*"},
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
