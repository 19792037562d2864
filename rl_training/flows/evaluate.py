"""`evaluate-flow`: plays a policy on fresh episodes, and says of a champion whether it is still as good as it was."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from rl_training.flows.deployment_overrides import over_stored
from rl_training.flows.flow_process import flow_process
from rl_training.flows.missed_schedules import made_up_for, skipped
from rl_training.flows.secret_blocks import hand_down_blocks
from rl_training.flows.tasks import monitor, roll_back_champion


@flow(name="evaluate-flow")
def evaluate_flow(
    source: str,
    episodes: Annotated[int, Field(ge=1)] | None = None,
    roll_back: bool = False,
    overrides: dict[str, Any] | list[str] | None = None,
    allow_modules: list[str] | None = None,
) -> dict[str, Any]:
    """Plays fresh episodes; those of a registered version are logged to its model's monitoring run.

    A champion that plays worse than when it was promoted, beyond doubt, raises the event `rl.champion.dropped`, and is
    rolled back where that is asked for. A flow run that is tried again plays nothing that is on record, and a scheduled
    one does nothing where there is no champion, or where another one has made up for it (Completed, under the name
    Skipped).

    Args:
        source: As a rule `models:/NAME@champion`; else another version, an MLflow run, or a directory.
        episodes: How many, in place of `promotion.episodes`.
        roll_back: Whether the champion before is to be champion again where this one has dropped.
        overrides: Settings of `promotion.*`, `evaluation.*` and `env_kwargs.*` that differ from those at the promotion,
            nested or by dotted keys, as a mapping or a list of texts.
        allow_modules: As for resume-flow.

    Returns:
        The evaluation as JSON (`dropped`, `reasons`, `evaluation`, ...) with `rolled_back`: what became champion in its
        place, or None.

    Raises:
        CheckpointError: The policy is damaged.
        ConfigError: A fault of the overrides; nothing was played or logged.
        ModuleRefused: The policy was received, and names a module that nobody has allowed.
        NoChampion: A person asks for a champion, and there is none.
        UserError: There is no such source, or nothing to roll back to.
    """
    from rl_training.promotion.monitoring import require_registered

    with flow_process():
        if (reason := made_up_for()) is not None:
            return skipped(reason)
        hand_down_blocks()
        if roll_back:
            require_registered(source)
        result = monitor(source, over_stored(overrides), episodes, allow_modules or ())
        if "skipped" in result:
            return skipped(result["skipped"])
        rolled_back = None
        if roll_back and result["dropped"] and result["is_champion"]:
            rolled_back = roll_back_champion(result)
        return {**result, "rolled_back": rolled_back}
