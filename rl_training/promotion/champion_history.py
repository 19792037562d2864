"""Who was champion of a registered model before, and how the alias moves from one version to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
"""Tag beside it: the champions before that one, newest first, as a list in JSON. A deleted version takes its own tags
with it, so each has the whole succession."""

PROMOTED_BY = "gate.promoted_by"
"""Tag of a version that became champion: the id of the decision by which it did."""

ROLLED_BACK = "gate.rolled_back"
"""Tag of a version that was champion and was rolled back: when, why, to which one, and which promotion that undid."""

MOST_EARLIER = 100
"""Earlier champions that are kept in mind."""


def find_previous_champion(client: MlflowClient, model: str, version: str) -> ModelVersion | None:
    """Returns the champion before a version: the newest that is still there and was not rolled back itself.

    Args:
        client: MLflow's client.
        model: The registered model's name.
        version: A version that became champion.

    Returns:
        That version, or None where there is none.

    Raises:
        MlflowException: There is no such version, or the registry is in trouble.
    """
    for number in _champions_before(client.get_model_version(model, version)):
        found = None if number in ("none", str(version)) else _existing(client, model, number)
        if found is not None and not _is_rolled_back(found):
            return found
    return None


def succession(champion: ModelVersion | None, decision_id: str) -> dict[str, str]:
    """Returns the tags of a version that is about to become champion.

    Args:
        champion: Who is champion before it.
        decision_id: By which decision it becomes champion.
    """
    earlier: list[str] = []
    if champion is not None:
        earlier = [number for number in _champions_before(champion) if number != "none"][:MOST_EARLIER]
    return {
        PREVIOUS: "none" if champion is None else str(champion.version),
        EARLIER: json.dumps(earlier),
        PROMOTED_BY: decision_id,
    }


def replace_champion(
    client: MlflowClient, model: str, champion: ModelVersion | None, version: str, lock: PromotionLock
) -> bool:
    """Makes a version champion in the place of another; nothing is written after this.

    Args:
        client: MLflow's client.
        model: The registered model's name.
        champion: Who was champion when it was decided.
        version: Who becomes champion.
        lock: Held since before it was decided.

    Returns:
        False, and nothing is changed, where another one is champion by now.

    Raises:
        TrackingError: The lock was lost, or the alias did not move.
    """
    if get_number(get_champion(client, model)) != get_number(champion):
        return False
    lock.check()
    client.set_registered_model_alias(model, CHAMPION, version)
    if get_number(get_champion(client, model)) != version:
        raise TrackingError(f"version {version} of {model} was made champion and is not; look at the registry")
    return True


def get_number(version: ModelVersion | None) -> str | None:
    """Returns a version's number as text, whatever type the store gives it; None for no version."""
    return None if version is None else str(version.version)


def set_tags(client: MlflowClient, version: ModelVersion, tags: Mapping[str, str]) -> None:
    """Sets tags of a version, in the order given."""
    for key, value in tags.items():
        client.set_model_version_tag(version.name, version.version, key, value)


def _existing(client: MlflowClient, model: str, version: str) -> ModelVersion | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(model, version)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _is_rolled_back(version: ModelVersion) -> bool:
    """Whether the promotion that made it champion was undone; a later promotion of it counts again."""
    mark = rolled_back(version)
    return mark is not None and mark["promoted_by"] == version.tags.get(PROMOTED_BY)


def rolled_back(version: ModelVersion) -> Undone | None:
    """Returns what a version's tag says of the rollback of its promotion, or None where there was none.

    Raises:
        TrackingError: Somebody has changed the tag.
    """
    mark: Undone | None = parse_json(version.tags.get(ROLLED_BACK, "null"), _tag(version, ROLLED_BACK), Undone | None)
    return mark


def _champions_before(version: ModelVersion) -> list[str]:
    """Returns the numbers of who was champion before a version, the newest first."""
    earlier: list[str] = parse_json(version.tags.get(EARLIER, "[]"), _tag(version, EARLIER), list[str])
    return [version.tags.get(PREVIOUS, "none"), *earlier]


def _tag(version: ModelVersion, name: str) -> str:
    return f"the tag {name} of version {version.version} of {version.name}"
