"""Records the champions of a registered model in tags, and moves the alias `champion` between versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rl_training.errors import TrackingError
from rl_training.promotion.model_registry import CHAMPION, get_champion
from rl_training.tracking.json_files import parse_json
from rl_training.tracking.record_schemas import Undone

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

    from rl_training.promotion.promotion_lock import PromotionLock

PREVIOUS = "gate.previous_champion"
"""Tag of a version that became champion: the version that was champion before it, or `none`."""

EARLIER = "gate.earlier_champions"
"""Tag of a version that became champion: the champions before the previous one, newest first, as a JSON list. Each
version has the complete list, because a deleted version takes its tags with it."""

PROMOTED_BY = "gate.promoted_by"
"""Tag of a version that became champion: the id of the decision that promoted it."""

ROLLED_BACK = "gate.rolled_back"
"""Tag of a champion that was rolled back, as JSON: when, why, to which version, and the promotion that was undone."""

MOST_EARLIER = 100
"""Number of earlier champions that are recorded."""


def list_previous_champions(client: MlflowClient, model: str, version: str) -> Iterator[ModelVersion]:
    """Yields the champions before a version that still exist and were not rolled back themselves, the newest first.

    Raises:
        MlflowException: There is no such version, or the registry returns another error.
    """
    for number in _read_champions_before(client.get_model_version(model, version)):
        found = None if number in ("none", str(version)) else _get_version(client, model, number)
        if found is not None and not _is_rolled_back(found):
            yield found


def make_succession_tags(champion: ModelVersion | None, decision_id: str) -> dict[str, str]:
    """Returns the tags of a version that is about to become champion."""
    earlier: list[str] = []
    if champion is not None:
        earlier = [number for number in _read_champions_before(champion) if number != "none"][:MOST_EARLIER]
    return {
        PREVIOUS: "none" if champion is None else str(champion.version),
        EARLIER: json.dumps(earlier),
        PROMOTED_BY: decision_id,
    }


def replace_champion(
    client: MlflowClient, model: str, champion: ModelVersion | None, version: str, lock: PromotionLock
) -> bool:
    """Moves the alias `champion` to another version; this is the last write of a promotion.

    Args:
        client: MLflow's client.
        model: The registered model's name.
        champion: The version that was champion when the decision was made.
        version: The version that becomes champion.
        lock: The lock, held since before the decision.

    Returns:
        False, without a change, if another version is champion by now.

    Raises:
        TrackingError: The lock was lost, or the alias has not moved.
    """
    if get_number(get_champion(client, model)) != get_number(champion):
        return False
    lock.check()
    client.set_registered_model_alias(model, CHAMPION, version)
    if get_number(get_champion(client, model)) != version:
        raise TrackingError(f"version {version} of {model} was made champion, but is not; check the alias in MLflow")
    return True


def get_number(version: ModelVersion | None) -> str | None:
    """Returns a version's number as text, whatever its type in the store; None for no version."""
    return None if version is None else str(version.version)


def set_tags(client: MlflowClient, version: ModelVersion, tags: Mapping[str, str]) -> None:
    """Sets tags of a version in the given order."""
    for key, value in tags.items():
        client.set_model_version_tag(version.name, version.version, key, value)


def _get_version(client: MlflowClient, model: str, version: str) -> ModelVersion | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(model, version)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _is_rolled_back(version: ModelVersion) -> bool:
    """Returns whether a version's last promotion was rolled back."""
    mark = read_rollback(version)
    return mark is not None and mark["promoted_by"] == version.tags.get(PROMOTED_BY)


def read_rollback(version: ModelVersion) -> Undone | None:
    """Returns the rollback that a version's tag records, or None if there is none.

    Raises:
        TrackingError: The tag is damaged.
    """
    mark: Undone | None = parse_json(
        version.tags.get(ROLLED_BACK, "null"), _describe_tag(version, ROLLED_BACK), Undone | None
    )
    return mark


def _read_champions_before(version: ModelVersion) -> list[str]:
    """Returns the numbers of the champions before a version, the newest first."""
    earlier: list[str] = parse_json(version.tags.get(EARLIER, "[]"), _describe_tag(version, EARLIER), list[str])
    return [version.tags.get(PREVIOUS, "none"), *earlier]


def _describe_tag(version: ModelVersion, name: str) -> str:
    return f"the tag {name} of version {version.version} of {version.name}"
