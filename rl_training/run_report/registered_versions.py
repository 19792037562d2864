"""The registered versions that were made from a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_training.promotion.decision_writing import DECISION_ID_TAG, DECISION_TAG
from rl_training.tracking.checkpoint_sources import CHECKPOINT_TAG

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """A version of a registered model."""

    model: str
    number: str
    aliases: tuple[str, ...]
    checkpoint: str | None
    """The name of its checkpoint in the run."""
    decisions: frozenset[str]
    """The ids of all decisions on it."""
    last_decision: str | None

    def __str__(self) -> str:
        aliases = f" ({', '.join(self.aliases)})" if self.aliases else ""
        return f"version {self.number} of {self.model}{aliases}"


def find_registered_versions(client: MlflowClient, run_id: str) -> tuple[RegisteredVersion, ...]:
    """Returns the versions that were made from a run, the oldest of each model first."""
    found = client.search_model_versions(f"run_id = '{run_id}'")
    aliases = {name: client.get_registered_model(name).aliases for name in {one.name for one in found}}
    return tuple(
        RegisteredVersion(
            model=one.name,
            number=str(one.version),
            aliases=tuple(sorted(a for a, number in aliases[one.name].items() if str(number) == str(one.version))),
            checkpoint=one.tags.get(CHECKPOINT_TAG),
            decisions=frozenset(tag.removeprefix(DECISION_TAG) for tag in one.tags if tag.startswith(DECISION_TAG)),
            last_decision=one.tags.get(DECISION_ID_TAG),
        )
        for one in sorted(found, key=lambda one: (one.name, int(one.version)))
    )
