"""What marks a flow run whose process is gone as Crashed: automations of the Prefect server, which has none of its own.

A flow run sends a heartbeat each half a minute. One that stays silent three times as long has no process any more, and
one that a worker has taken and that never starts has lost its worker.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rl_training.services.prefect_yaml import HEARTBEAT_SECONDS, TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
START_SECONDS = 300
"""From the moment that a worker takes a flow run to its first line of code; twelve seconds are usual."""


def automations() -> list[AutomationCore]:
    """Returns what must be on the server."""
    return [
        _crash(
            "rl-training: flow runs without a heartbeat",
            {"prefect.flow-run.heartbeat"},
            SILENCE_SECONDS,
            f"No heartbeat for {SILENCE_SECONDS} s: the process of this flow run is gone.",
        ),
        _crash(
            "rl-training: flow runs that never start",
            {"prefect.flow-run.Pending", "prefect.flow-run.Submitting", "prefect.flow-run.InfrastructurePending"},
            START_SECONDS,
            f"Taken by a worker and not started within {START_SECONDS} s: the worker is gone.",
        ),
    ]


def _crash(name: str, after: set[str], seconds: int, message: str) -> AutomationCore:
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    ours: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    trigger = EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=ours,
        after=after,
        expect={"prefect.flow-run.*"},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=seconds),
    )
    crash = ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message, force=False)
    return AutomationCore(
        name=name, description=f"Kept by `rl-training deploy`. {message}", trigger=trigger, actions=[crash]
    )


def install_automations(client: SyncPrefectClient) -> dict[str, str]:
    """Makes the automations, or sets them right where they differ; one that someone has paused stays paused.

    Returns:
        What was done with each: `created`, `updated` or `unchanged`.
    """
    done = {}
    for wanted in automations():
        there = client.read_automations_by_name(wanted.name)
        for extra in there[1:]:
            client.delete_automation(extra.id)
        if not there:
            client.create_automation(wanted)
            done[wanted.name] = "created"
        elif is_as_wanted(there[0], wanted):
            done[wanted.name] = "unchanged"
        else:
            client.update_automation(there[0].id, wanted.model_copy(update={"enabled": there[0].enabled}))
            done[wanted.name] = "updated"
    return done


def is_as_wanted(there: AutomationCore, wanted: AutomationCore) -> bool:
    """Returns whether an automation of the server does what is wanted, whether or not it is paused."""
    same_trigger = there.trigger.model_dump(exclude={"id"}) == wanted.trigger.model_dump(exclude={"id"})
    return same_trigger and there.actions == wanted.actions
