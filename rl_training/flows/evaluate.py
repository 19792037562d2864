"""`evaluate-flow`: evaluates a policy on new episodes, and checks whether a champion still plays as well as before."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.from_server.deployment_overrides import merge_stored_overrides
from rl_training.flows.from_server.missed_schedules import find_skip_reason, skip
from rl_training.flows.from_server.secret_blocks import enable_secret_blocks
from rl_training.flows.tasks import monitor, roll_back_champion


@flow(name="evaluate-flow", on_completion=[emit_end])
def evaluate_flow(
    source: str,
    episodes: Annotated[int, Field(ge=1)] | None = None,
    roll_back: bool = False,
    overrides: dict[str, Any] | list[str] | None = None,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Evaluates a policy on new episodes. For a registered version, logs them to the model's monitoring run.

    If a champion plays significantly worse than when it was promoted, the event `rl.champion.dropped` is emitted and,
    with `roll_back`, the previous champion is restored. A retry of the flow run plays no episodes that are already
    logged. A scheduled flow run ends as Completed, with the state name Skipped, if there is no champion or if a later
    flow run has already started in its place.

    Args:
        source: The policy: usually `models:/NAME@champion`, or another version, an MLflow run, or a directory.
        episodes: The number of episodes; by default `promotion.episodes`.
        roll_back: Whether to restore the previous champion if this one plays worse than before.
        overrides: Changes to the settings `promotion.*`, `evaluation.*` and `env_kwargs.*` used at the promotion, with
            nested or dotted keys, as a mapping or a list of `key=value` texts.
        allow_modules: See resume-flow.

    Returns:
        The evaluation as JSON (`dropped`, `reasons`, `evaluation`, ...) and `rolled_back`: the result of the rollback,
        or None.

    Raises:
        CheckpointError: The policy is damaged.
        ConfigError: The overrides are not valid; nothing was played or logged.
        ModuleRefused: The policy was received, and names a module that is not allowed.
        NoChampion: The source is a champion, there is none, and no schedule started this flow run.
        UserError: The source does not exist, or there is no champion to roll back to.
    """
    from rl_training.promotion.monitoring import require_registered

    with prepare_flow_process():
        if (reason := find_skip_reason()) is not None:
            return skip(reason)
        enable_secret_blocks()
        if roll_back:
            require_registered(source)
        result = monitor(source, merge_stored_overrides(overrides), episodes, allow_modules or ())
        if "skipped" in result:
            return skip(result["skipped"])
        rolled_back = None
        if roll_back and result["dropped"] and result["is_champion"]:
            rolled_back = roll_back_champion(result, allow_modules or ())
        return {**result, "rolled_back": rolled_back}
