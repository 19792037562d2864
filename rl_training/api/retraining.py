"""Deciding whether a scheduled retraining is due, and which weights it starts from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError
from rl_training.promotion.model_registry import get_champion, get_model_name
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

Start = Literal["champion", "scratch"]
"""Whether a retraining starts from the champion's weights or from new ones."""


@dataclass(frozen=True, kw_only=True)
class RetrainingPlan:
    """The decision about a retraining."""

    due: bool
    """Whether to retrain."""
    source: str | None = None
    """The version to start from, `models:/NAME/VERSION`; None to start from scratch."""
    reason: str
    """A sentence that explains the decision."""


def plan_retraining(
    config: TrainConfig, *, start: Start, min_hours: float = 0.0, tracking_uri: str | None = None
) -> RetrainingPlan:
    """Decides whether and how to retrain, from the age and algorithm of the current champion.

    Args:
        config: The settings of the retraining; they name the registered model.
        start: `champion` to start from the champion's weights if there is a champion; `scratch` for new weights.
        min_hours: The retraining is not due if the champion's version was registered less than this many hours ago.
        tracking_uri: The MLflow store; by default `$MLFLOW_TRACKING_URI`, or else the embedded store.

    Raises:
        CheckpointError: The retraining would start from the champion, which another algorithm has trained.
        TrackingError: MLflow can't be reached.
    """
    model, uri = get_model_name(config), resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, f"the champion of {model}"):
        champion = get_champion(connect(uri), model)
    if champion is None:
        return RetrainingPlan(due=True, reason=f"{model} has no champion yet: this retraining starts from scratch")
    hours = (time.time() - champion.creation_timestamp / 1000) / 3600
    known = f"version {champion.version} of {model}, the champion, is {hours:.1f} hours old"
    if hours < min_hours:
        return RetrainingPlan(due=False, reason=f"{known}; a retraining is due when it is {min_hours:g} hours old")
    if start == "scratch":
        return RetrainingPlan(due=True, reason=f"{known}; this retraining starts from scratch, as requested")
    _require_same_algorithm(champion, config)
    source = f"models:/{model}/{champion.version}"
    return RetrainingPlan(due=True, source=source, reason=f"{known}; this retraining starts from its weights")


def _require_same_algorithm(champion: ModelVersion, config: TrainConfig) -> None:
    algorithm = champion.tags.get("algo", config.algo)
    if algorithm != config.algo:
        raise CheckpointError(
            f"version {champion.version} of {champion.name}, the champion, was trained by {algorithm}, and "
            f"{config.algo} can't start from its weights; retrain from scratch (start=scratch), or with settings of "
            f"{algorithm}"
        )
