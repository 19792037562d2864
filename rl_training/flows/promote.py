"""`promote-flow`: compares a candidate with the champion, and promotes the candidate if it is better."""

from __future__ import annotations

from typing import Any

from prefect import flow

from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.secret_blocks import enable_secret_blocks
from rl_training.flows.tasks import promote_candidate


@flow(name="promote-flow", on_completion=[emit_end])
def promote_flow(
    candidate: str,
    overrides: dict[str, Any] | list[str] | None = None,
    force: str | None = None,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Registers a candidate and lets the gate decide. A promotion emits the event `rl.champion.promoted`.

    Args:
        candidate: A run, given as MLflow run id, `runs:/ID` or directory, whose best checkpoint is the candidate; a
            checkpoint's directory; or `models:/NAME/VERSION`.
        overrides: Changes to the run's settings `promotion.*` and `evaluation.*`, with nested or dotted keys, as a
            mapping or a list of `key=value` texts.
        force: A reason to promote the candidate whatever the gate decides; it is recorded.
        allow_modules: See resume-flow.

    Returns:
        The decision as JSON: `verdict`, `reasons`, `model`, `version`, `alias`, and so on.

    Raises:
        CheckpointError: The candidate is damaged.
        ConfigError: The overrides are not valid; nothing was played or registered.
        ModuleRefused: The candidate was received, and names a module that is not allowed.
        UserError: The candidate does not exist, or the reason is empty.
    """
    with prepare_flow_process():
        enable_secret_blocks()
        return promote_candidate(candidate, merge_stored_overrides(overrides), force, allow_modules or ())
