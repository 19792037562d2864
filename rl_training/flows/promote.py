"""`promote-flow`: lets a candidate play against the champion, and makes it champion if it is better."""

from __future__ import annotations

from typing import Any

from prefect import flow

from rl_training.flows.deployment_overrides import over_stored
from rl_training.flows.flow_process import flow_process
from rl_training.flows.secret_blocks import hand_down_blocks
from rl_training.flows.tasks import promote_candidate


@flow(name="promote-flow")
def promote_flow(
    candidate: str,
    overrides: dict[str, Any] | list[str] | None = None,
    force: str | None = None,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Registers a candidate and lets the gate decide; a new champion raises the event `rl.champion.promoted`.

    Args:
        candidate: A run by MLflow's id, `runs:/ID` or directory, of which the best checkpoint is offered; a
            checkpoint's directory; or `models:/NAME/VERSION`.
        overrides: Settings of `promotion.*` and `evaluation.*` that differ from the run's, nested or by dotted keys, as
            a mapping or a list of texts.
        force: A reason to make it champion whatever the gate finds; it stays on record.
        allow_modules: As for resume-flow.

    Returns:
        The decision as JSON: `verdict`, `reasons`, `model`, `version`, `alias`, and so on.

    Raises:
        CheckpointError: The candidate or the champion's copy is damaged.
        ConfigError: A fault of the overrides; nothing was played or registered.
        ModuleRefused: The candidate was received, and names a module that nobody has allowed.
        UserError: There is no such candidate, or the reason is empty.
    """
    with flow_process():
        hand_down_blocks()
        return promote_candidate(candidate, over_stored(overrides), force, allow_modules or ())
