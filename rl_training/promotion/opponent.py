"""Finds the version that a candidate is compared with: the champion, or the last champion that can be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_training.errors import CheckpointError, one_line
from rl_training.promotion.champion_history import list_previous_champions
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import load_policy
from rl_training.tracking.version_files import download_version_policy

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient


@dataclass(frozen=True)
class Opponent:
    """A version that can be loaded, for a comparison with a candidate."""

    version: ModelVersion
    checkpoint: Checkpoint
    policy: Policy


def find_opponent(
    client: MlflowClient, uri: str, model: str, champion: ModelVersion | None
) -> tuple[Opponent | None, str | None]:
    """Returns the version that a candidate is compared with, and why that is not the champion.

    Args:
        client: MLflow's client.
        uri: The tracking URI.
        model: The registered model's name.
        champion: The champion, if there is one.

    Returns:
        The champion and None. If the champion can't be loaded, the newest champion before it that can, or None if none
        can, and a sentence with the reason. If there is no champion, None and None.
    """
    if champion is None:
        return None, None
    try:
        return _load(client, uri, champion), None
    except CheckpointError as error:
        lost = f"the champion, version {champion.version}, can't be loaded: {one_line(error)}"
    for earlier in list_previous_champions(client, model, champion.version):
        try:
            opponent = _load(client, uri, earlier)
        except CheckpointError:
            continue
        return opponent, f"{lost}; version {earlier.version}, the last champion that can be, is compared in its place"
    return None, lost


def _load(client: MlflowClient, uri: str, version: ModelVersion) -> Opponent:
    checkpoint = download_version_policy(client, uri, version)
    return Opponent(version, checkpoint, load_policy(checkpoint))
