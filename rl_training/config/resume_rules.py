"""What may differ between a checkpoint's settings and those that go on from it: one rule a field, in one table.

A field without a rule must be equal: whatever an algorithm adds is part of the run, unless it is named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rl_training.config.secrets import redact
from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError


class Rule(StrEnum):
    """How a field may change on resume."""

    MAY_CHANGE = "may change"
    """It has no effect on what is learnt."""
    INEXACT = "may change, and makes the run inexact"
    """Sums differ between devices and thread counts."""
    MAY_GROW = "may grow"
    """Schedules are computed anew over the larger total."""
    MUST_EQUAL = "must be equal"


RULES: Mapping[str, Rule] = {
    "run_dir": Rule.MAY_CHANGE,
    "run_name": Rule.MAY_CHANGE,
    "tags": Rule.MAY_CHANGE,
    "experiment": Rule.MAY_CHANGE,
    "job": Rule.MAY_CHANGE,
    "logging": Rule.MAY_CHANGE,
    "evaluation": Rule.MAY_CHANGE,
    "checkpoint": Rule.MAY_CHANGE,
    "promotion": Rule.MAY_CHANGE,
    "validation": Rule.MAY_CHANGE,
    "device": Rule.INEXACT,
    "threads": Rule.INEXACT,
    "total_timesteps": Rule.MAY_GROW,
}
"""By top-level field."""


@dataclass(frozen=True)
class Difference:
    """One setting that differs between a checkpoint and the run that goes on from it."""

    key: str
    """Dotted path of the setting."""
    before: Any
    after: Any
    rule: Rule

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.after!r} ({self.rule.value})"


def differences(before: TrainConfig, after: TrainConfig) -> list[Difference]:
    """Returns every setting that differs, by dotted path. Secrets are not compared: a checkpoint holds none."""
    old, new = (dict(_leaves(redact(config.model_dump(mode="json"), references=True))) for config in (before, after))
    return [difference(key, old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


def difference(key: str, before: Any, after: Any) -> Difference:
    """Returns a setting that differs, by its dotted path, with its rule."""
    return Difference(key, before, after, RULES.get(key.split(".")[0], Rule.MUST_EQUAL))


def check_differences(found: list[Difference]) -> None:
    """Refuses what may not differ.

    Raises:
        CheckpointError: Names each such setting with both values.
    """
    wrong = [d for d in found if d.rule is Rule.MUST_EQUAL or (d.rule is Rule.MAY_GROW and d.after < d.before)]
    if wrong:
        raise CheckpointError(
            "these settings differ from the checkpoint's and may not: "
            + "; ".join(map(str, wrong))
            + "; leave them as they were, or start a new run"
        )


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{path}.")
        else:
            yield path, item
