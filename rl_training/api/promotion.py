"""Promoting and rolling back, as the command line and the flows do it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rl_training.config.parsing import Overrides
from rl_training.promotion.candidates import find_candidate
from rl_training.promotion.decision import PromotionResult
from rl_training.promotion.promote import promote
from rl_training.promotion.rollback import RollbackResult, roll_back
from rl_training.runs.stopping import StopFlag

__all__ = ["PromotionResult", "RollbackResult", "promote_candidate", "roll_back"]


def promote_candidate(
    source: str | Path,
    overrides: Overrides = (),
    *,
    force: str | None = None,
    allow_modules: Collection[str] = (),
    tracking_uri: str | None = None,
    stop: StopFlag | None = None,
) -> PromotionResult:
    """Offers a candidate for promotion: it becomes champion by evidence, or because a person says why.

    Args:
        source: What is offered; see `rl_training.promotion.candidates.find_candidate`. Of a run, its best checkpoint.
        overrides: Settings of `promotion.*` and `evaluation.*` that differ from the run's.
        force: A reason to make it champion whatever the gate finds; the episodes are played and recorded all the same.
        allow_modules: Modules that a received candidate may name; see `rl_training.config.named_modules`.
        tracking_uri: MLflow's store; by default that of the run in a directory, else `$MLFLOW_TRACKING_URI`, else the
            embedded one.
        stop: Polled between steps of the episodes.

    Returns:
        The decision. Asking the same again gives the same, and plays nothing.

    Raises:
        CheckpointError: The candidate or the champion's copy is damaged.
        ConfigError: An override is not valid.
        ModuleRefused: A received candidate names a module that nobody has allowed.
        TrackingError: MLflow can't be reached, or another promotion did not end.
        UserError: There is no such source, or the reason is empty.
        StopTraining: `stop` was set.
    """
    candidate = find_candidate(source, overrides, allow_modules=allow_modules, tracking_uri=tracking_uri)
    return promote(
        candidate.checkpoint,
        candidate.config,
        run_id=candidate.run_id,
        tracking_uri=candidate.tracking_uri,
        force=force,
        stop=stop,
    )
