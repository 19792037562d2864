"""Promotion and rollback for the command line and the flows."""

from __future__ import annotations

from collections.abc import Collection
from os import PathLike

from rl_training.config.named_modules import allowing
from rl_training.config.parsing import Overrides
from rl_training.promotion.candidates import find_candidate
from rl_training.promotion.decision import PromotionResult
from rl_training.promotion.promote import promote
from rl_training.promotion.rollback import RollbackResult, roll_back
from rl_training.runs.stopping import StopFlag
from rl_training.system.download_directories import discard_downloads

__all__ = ["PromotionResult", "RollbackResult", "promote_candidate", "roll_back"]


@discard_downloads()
def promote_candidate(
    source: str | PathLike[str],
    overrides: Overrides = (),
    *,
    force: str | None = None,
    allow_modules: Collection[str] = (),
    tracking_uri: str | None = None,
    stop: StopFlag | None = None,
) -> PromotionResult:
    """Compares a candidate with the champion, and promotes the candidate if the gate decides so or `force` is given.

    Args:
        source: The candidate; for a run, its best checkpoint. See `rl_training.promotion.candidates.find_candidate`.
        overrides: Changes to the run's settings `promotion.*` and `evaluation.*`.
        force: A reason to promote the candidate whatever the gate decides. The episodes are played and recorded anyway.
        allow_modules: Modules that a received candidate, and the champion that it is compared with, may import; see
            `rl_training.config.named_modules`.
        tracking_uri: The MLflow store; by default the one that a run directory names, or else `$MLFLOW_TRACKING_URI`,
            or else the embedded store.
        stop: Polled between steps of the episodes.

    Returns:
        The decision. A call with the same arguments returns the recorded decision and plays no episodes.

    Raises:
        CheckpointError: The candidate is damaged.
        ConfigError: An override is not valid.
        ModuleRefused: A received candidate names a module that is not allowed.
        TrackingError: MLflow can't be reached, or another promotion did not finish in time.
        UserError: The source does not exist, or the reason is empty.
        StopTraining: `stop` was set.
    """
    candidate = find_candidate(source, overrides, allow_modules=allow_modules, tracking_uri=tracking_uri)
    with allowing(allow_modules):
        return promote(
            candidate.checkpoint,
            candidate.config,
            run_id=candidate.run_id,
            tracking_uri=candidate.tracking_uri,
            force=force,
            stop=stop,
        )
