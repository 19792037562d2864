"""Rolls back a promotion: makes the previous champion of a registered model champion again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rl_training.config.named_modules import allowing
from rl_training.errors import CheckpointError, TrackingError, UserError
from rl_training.promotion.champion_history import (
    PROMOTED_BY,
    ROLLED_BACK,
    get_number,
    list_previous_champions,
    read_rollback,
    replace_champion,
    set_tags,
)
from rl_training.promotion.model_registry import get_champion, remove_challenger, set_description
from rl_training.promotion.promote import clean_reason
from rl_training.promotion.promotion_lock import PromotionLock, promotion_lock
from rl_training.runtime.workflows import load_policy
from rl_training.system.programs import program
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.version_files import download_verified_copy

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient


@dataclass(frozen=True, kw_only=True)
class RollbackResult:
    """The result of a rollback."""

    model: str
    """Name of the registered model."""
    version: str
    """The version that is champion again."""
    previous_version: str
    """The version that was rolled back."""
    reason: str
    time: str
    """Time of the rollback, UTC, ISO 8601."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Returns the result as lines of text."""
        return [
            f"rolled back: version {self.version} of registered model {self.model} is champion again, in place of "
            f"version {self.previous_version}",
            f"  {self.reason}",
        ]


def roll_back(
    model: str,
    *,
    reason: str,
    version: str | None = None,
    allow_modules: Collection[str] = (),
    tracking_uri: str | None = None,
) -> RollbackResult:
    """Makes the previous champion of a model champion again, after its policy has been verified and loaded.

    The version that is rolled back keeps its tags, gets a tag with the reason and says so in its description. It is no
    longer the challenger, and only a new decision can promote it again.

    Args:
        model: The registered model's name.
        reason: The reason, which is recorded in a tag of the version.
        version: The champion to roll back; by default the present champion. If this version was already rolled back,
            that result is returned; if another version is champion, the rollback is refused.
        allow_modules: Modules that the previous champion may import for its network (`network.body`).
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded store.

    Raises:
        CheckpointError: The previous champion's copy is damaged.
        ModuleRefused: The previous champion's network needs a module that is not allowed.
        TrackingError: The registry can't be reached, or a promotion did not end in time.
        UserError: There is no such model, it has no champion or no previous champion, `version` is not the champion, or
            the reason is empty.
    """
    reason = clean_reason(reason, "a rollback")
    uri = resolve_tracking_uri(tracking_uri)
    with translate_mlflow_errors(uri, f"rollback of {model}"):
        client = connect(uri)
        client.get_registered_model(model)
        with promotion_lock(client, uri, model) as lock, allowing(allow_modules):
            champion = get_champion(client, model)
            if version is not None and get_number(champion) != version:
                return _find_done_rollback(client, model, version, champion)
            if champion is None:
                raise UserError(
                    f"{model} has no champion to roll back; another version becomes champion with "
                    f"`{program('rl-training')} promote {_format_version(model)}`"
                )
            return _roll_back(client, uri, champion, reason, lock)


def _roll_back(
    client: MlflowClient, uri: str, champion: ModelVersion, reason: str, lock: PromotionLock
) -> RollbackResult:
    model = champion.name
    target = next(list_previous_champions(client, model, champion.version), None)
    if target is None:
        raise UserError(
            f"version {champion.version} of {model} has no champion before it that is still there and was not rolled "
            f"back; another version becomes champion with `{program('rl-training')} promote {_format_version(model)}`"
        )
    try:
        load_policy(download_verified_copy(client, uri, target))
    except CheckpointError as error:
        raise CheckpointError(
            f"version {target.version} of {model}, the champion before, can't be used: {error}; delete that version in "
            f"MLflow to roll back to the one before it"
        ) from error
    result = RollbackResult(
        model=model,
        version=str(target.version),
        previous_version=str(champion.version),
        reason=reason,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    mark = {**result.to_dict(), "promoted_by": champion.tags.get(PROMOTED_BY)}
    set_tags(client, champion, {ROLLED_BACK: json.dumps(mark)})
    note = f"Rolled back to version {target.version} on {result.time}: {reason}"
    set_description(client, champion, f"{note}\n\n{champion.description or ''}")
    remove_challenger(client, champion)
    if not replace_champion(client, model, champion, result.version, lock):
        raise TrackingError(
            f"the champion of {model} changed during the rollback; check which version is champion and try again"
        )
    return result


def _find_done_rollback(
    client: MlflowClient, model: str, version: str, champion: ModelVersion | None
) -> RollbackResult:
    """Returns the requested rollback if it was done before.

    Raises:
        UserError: It was not, and another version is champion.
    """
    mark = read_rollback(client.get_model_version(model, version))
    if mark is not None and champion is not None and mark["version"] == str(champion.version):
        return RollbackResult(
            model=mark["model"],
            version=mark["version"],
            previous_version=mark["previous_version"],
            reason=mark["reason"],
            time=mark["time"],
        )
    now = "none is" if champion is None else f"version {champion.version} is"
    raise UserError(f"version {version} is not the champion of {model} ({now}): nothing was rolled back")


def _format_version(model: str) -> str:
    return shlex.quote(f"models:/{model}/VERSION")
