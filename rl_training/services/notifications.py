"""Automations of the Prefect server that tell people what has happened, by a notification block that they choose.

They watch the flow runs of our deployments and the events that our flows emit about registered models. Whether a
message goes to a chat, a mailbox or a webhook is the block's affair.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from rl_training.errors import UserError
from rl_training.flows.artifacts_and_events import CANDIDATE_REJECTED, CHAMPION_DROPPED, CHAMPION_PROMOTED
from rl_training.services.prefect_yaml import TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

PREFIX = "rl-training: notify"
"""The names of these automations begin with this."""
FAILED = {f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut")}
SKIPPED = {"prefect.flow-run.Skipped"}
_RUN = "{{ flow.name }}, flow run {{ flow_run.name }}: {{ flow_run.state.name }}"
_MODEL = "{{ event.payload.model }}, version {{ event.payload.version }}: "
_REASONS = "{{ event.payload.reasons|join(' ') }}\n{{ event.payload.page or '' }}"


def build_notifications(block: UUID, pages: str) -> list[AutomationCore]:
    """Returns the automations that must be on the server.

    Args:
        block: The id of the notification block that sends the messages.
        pages: The address of Prefect's pages for users; a server that is started without settings does not know it.
    """
    body = f"{{{{ flow_run.state.message }}}}\n{pages}/runs/flow-run/{{{{ flow_run.id }}}}"
    return [
        _build_automation("of a flow run that failed or crashed", FAILED, _RUN, body, block),
        _build_automation("of a retraining that was skipped", SKIPPED, _RUN, body, block),
        _build_automation("of a new champion", {CHAMPION_PROMOTED}, _MODEL + "champion", _REASONS, block),
        _build_automation(
            "of a candidate that was not promoted",
            {CANDIDATE_REJECTED},
            _MODEL + "{{ event.payload.verdict }}",
            _REASONS,
            block,
        ),
        _build_automation(
            "of a champion that plays worse",
            {CHAMPION_DROPPED},
            _MODEL + "plays worse than when it was promoted",
            _REASONS,
            block,
        ),
    ]


def find_block(client: SyncPrefectClient, name: str) -> UUID:
    """Returns the id of a notification block.

    Args:
        client: A client of the server.
        name: The block's type and name, such as `slack-webhook/team`.

    Raises:
        UserError: The server has no such block, or it can't notify anybody.
    """
    from prefect.exceptions import ObjectNotFound

    kind, slash, own = name.partition("/")
    if not (kind and slash and own):
        raise UserError(f"--notify: got {name!r}, expected the type and name of a block, such as slack-webhook/team")
    try:
        found = client.read_block_document_by_name(own, kind, include_secrets=False)
    except ObjectNotFound:
        raise UserError(
            f"--notify: the Prefect server has no block {name}; `prefect block ls` lists those that it has, and its "
            f"page of blocks makes others"
        ) from None
    if found.block_schema is None or "notify" not in found.block_schema.capabilities:
        raise UserError(
            f"--notify: blocks of type {kind} can't notify anybody; choose another type, such as slack-webhook, "
            f"ms-teams-webhook, sendgrid-email or custom-webhook"
        )
    return found.id


def _build_automation(what: str, events: set[str], subject: str, body: str, block: UUID) -> AutomationCore:
    """Returns an automation that sends a message about each of these events."""
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    of_runs = all(event.startswith("prefect.flow-run.") for event in events)
    tagged: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    trigger = EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*" if of_runs else "rl-training.model.*"},
        match_related=tagged if of_runs else {},
        expect=events,
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    message = SendNotification(block_document_id=block, subject=subject, body=body)
    return AutomationCore(
        name=f"{PREFIX} {what}",
        description="Managed by `rl-training deploy --notify`.",
        trigger=trigger,
        actions=[message],
    )
