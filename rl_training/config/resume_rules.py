"""What may differ between a checkpoint's settings and those that go on from it: one rule a field, in one table.

A field without a rule must be equal: whatever an algorithm adds is part of the run, unless it is named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError
from rl_training.security.secrets import redact


class Rule(StrEnum):
    """How a field may change on resume."""

    MAY_CHANGE = "may change"
    INEXACT = "may change, and makes the run inexact"
    MAY_GROW = "may grow"
    MUST_EQUAL = "must be equal"


REASONS: Mapping[Rule, str] = {
    Rule.MAY_CHANGE: "has no effect on what is learnt",
    Rule.INEXACT: "sums differ between devices and between thread counts",
    Rule.MAY_GROW: "schedules are computed over the larger total",
    Rule.MUST_EQUAL: "is part of what is learnt",
}

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

ALIKE = ("sync", "async", "split")
"""Kinds of `vectorization` whose environments come out the same, to the last bit: one may take another's place."""

FIXED_IN_FINE_TUNING = ("algo", "network", "dueling", "normalization.observation")
"""What fine-tuning may not change, by dotted path: it says what the weights are weights of. All else may change."""


def rule_of(key: str, *, fine_tuning: bool = False) -> Rule:
    """Returns the rule for a setting.

    Args:
        key: Its dotted path.
        fine_tuning: Whether the weights alone are carried over.
    """
    if fine_tuning:
        fixed = any(key == path or key.startswith(f"{path}.") for path in FIXED_IN_FINE_TUNING)
        return Rule.MUST_EQUAL if fixed else Rule.MAY_CHANGE
    return RULES.get(key.split(".")[0], Rule.MUST_EQUAL)


@dataclass(frozen=True)
class Difference:
    """A setting, or a space of the environment, that differs between a checkpoint and the run that goes on from it."""

    key: str
    """Dotted path of the setting; `observation_space` or `action_space`."""
    before: Any
    after: Any
    rule: Rule

    def __str__(self) -> str:
        text = f"{self.key}: {self.before!r} -> {self.after!r} ({self.rule.value})"
        return " ".join(text.split())  # arrays, such as the bounds of a space, come in columns


def differences(before: TrainConfig, after: TrainConfig, *, fine_tuning: bool = False) -> list[Difference]:
    """Returns every setting that differs, by dotted path. Secrets are not compared: a checkpoint holds none."""
    old, new = (dict(_leaves(redact(config.model_dump(mode="json"), references=True))) for config in (before, after))
    return [
        difference(key, old.get(key), new.get(key), fine_tuning=fine_tuning)
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def difference(key: str, before: Any, after: Any, *, fine_tuning: bool = False) -> Difference:
    """Returns a setting that differs, by its dotted path, with its rule."""
    rule = rule_of(key, fine_tuning=fine_tuning)
    if key == "vectorization" and before in ALIKE and after in ALIKE:
        rule = Rule.MAY_CHANGE
    return Difference(key, before, after, rule)


def check_differences(found: list[Difference]) -> None:
    """Refuses what may not differ.

    Raises:
        CheckpointError: Names each such difference with both values, and offers fine-tuning where that would do.
    """
    wrong = [d for d in found if d.rule is Rule.MUST_EQUAL or (d.rule is Rule.MAY_GROW and d.after < d.before)]
    if wrong:
        fixed = any(rule_of(d.key, fine_tuning=True) is Rule.MUST_EQUAL for d in found)
        instead = "start a new run" if fixed else "begin a new run with the checkpoint's weights alone by --fine-tune"
        raise CheckpointError(
            "these differ from the checkpoint's and may not: "
            + "; ".join(map(str, wrong))
            + f"; leave them as they were, or {instead}"
        )


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{path}.")
        else:
            yield path, item
