"""Which settings may differ between a checkpoint and the run that resumes from it: one rule per field, in one table.

A field without a rule must be equal, so whatever an algorithm adds is part of the run unless it is listed here.
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
    Rule.MAY_CHANGE: "has no effect on what is learned",
    Rule.INEXACT: "sums differ between devices and numbers of threads or ranks; callbacks may change environments",
    Rule.MAY_GROW: "schedules are computed over the larger total",
    Rule.MUST_EQUAL: "affects what is learned",
}
"""Why each rule applies, for the documentation."""

RULES: Mapping[str, Rule] = {
    "run_dir": Rule.MAY_CHANGE,
    "run_name": Rule.MAY_CHANGE,
    "tags": Rule.MAY_CHANGE,
    "experiment": Rule.MAY_CHANGE,
    "job": Rule.MAY_CHANGE,
    "logging": Rule.MAY_CHANGE,
    "metrics": Rule.MAY_CHANGE,
    "tracking": Rule.MAY_CHANGE,
    "evaluation": Rule.MAY_CHANGE,
    "checkpoint": Rule.MAY_CHANGE,
    "promotion": Rule.MAY_CHANGE,
    "validation": Rule.MAY_CHANGE,
    "callbacks": Rule.INEXACT,
    "device": Rule.INEXACT,
    "threads": Rule.INEXACT,
    "ranks": Rule.INEXACT,
    "total_timesteps": Rule.MAY_GROW,
}
"""The rule of each top-level field."""

SESSION = "__main__"
"""The module of the script or notebook that a process runs, which no other process can import."""

INTERCHANGEABLE = ("sync", "async", "split")
"""Kinds of `vectorization` that step environments with identical results, so each may replace another."""

FIXED_IN_FINE_TUNING = ("algo", "network", "dueling", "normalization.observation")
"""Dotted paths of the settings that fine-tuning may not change, because they define what the weights mean."""


def get_rule(key: str, *, fine_tuning: bool = False) -> Rule:
    """Returns the rule for a setting.

    Args:
        key: The dotted path of the setting.
        fine_tuning: Whether only the weights are kept.
    """
    if fine_tuning:
        fixed = any(key == path or key.startswith(f"{path}.") for path in FIXED_IN_FINE_TUNING)
        return Rule.MUST_EQUAL if fixed else Rule.MAY_CHANGE
    return RULES.get(key.split(".")[0], Rule.MUST_EQUAL)


@dataclass(frozen=True)
class Difference:
    """A setting, or a space of the environment, that differs between a checkpoint and the run that resumes from it."""

    key: str
    """Dotted path of the setting, or `observation_space` or `action_space`."""
    before: Any
    after: Any
    rule: Rule

    def __str__(self) -> str:
        text = f"{self.key}: {self.before!r} -> {self.after!r} ({self.rule.value})"
        return " ".join(text.split())  # arrays, such as the bounds of a space, are printed in columns


def find_differences(before: TrainConfig, after: TrainConfig, *, fine_tuning: bool = False) -> list[Difference]:
    """Returns every setting that differs, by dotted path. Secrets are not compared: a checkpoint contains none."""
    old, new = (dict(_flatten(redact(config.model_dump(mode="json"), references=True))) for config in (before, after))
    return [
        make_difference(key, old.get(key), new.get(key), fine_tuning=fine_tuning)
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not (_is_filled(key, old, new) or _is_filled(key, new, old))
    ]


def _is_filled(key: str, empty: Mapping[str, Any], filled: Mapping[str, Any]) -> bool:
    """Returns whether a mapping is empty on one side and not on the other, where each of its keys is a difference."""
    return empty.get(key) == {} and any(other.startswith(f"{key}.") for other in filled)


def make_difference(key: str, before: Any, after: Any, *, fine_tuning: bool = False) -> Difference:
    """Returns the difference of the setting at a dotted path, with its rule."""
    rule = get_rule(key, fine_tuning=fine_tuning)
    if key == "vectorization" and before in INTERCHANGEABLE and after in INTERCHANGEABLE:
        rule = Rule.MAY_CHANGE
    if key in ("env_id", "wrappers", "training_wrappers") and _is_moved(before, after):
        rule = Rule.MAY_CHANGE
    return Difference(key, before, after, rule)


def _is_moved(before: Any, after: Any) -> bool:
    """Returns whether code of a session was put into a module: `__main__:Walk-v0`, or `Walk-v0`, is `walk:Walk-v0`."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return all(old == new or _is_wrapper_moved(old, new) for old, new in zip(before, after, strict=True))
    if not isinstance(before, str) or not isinstance(after, str):
        return False
    module, _, name = before.rpartition(":")
    return module in ("", SESSION) and after.rpartition(":")[2] == name


def _is_wrapper_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    named = before["name"].startswith(f"{SESSION}:") and _is_moved(before["name"], after["name"])
    return named and before["kwargs"] == after["kwargs"]


def check_differences(found: list[Difference]) -> None:
    """Refuses differences that the rules do not allow.

    Raises:
        CheckpointError: The message lists each such difference with both values, and suggests fine-tuning if that
            would allow them.
    """
    wrong = [d for d in found if d.rule is Rule.MUST_EQUAL or (d.rule is Rule.MAY_GROW and d.after < d.before)]
    if wrong:
        fixed = any(get_rule(d.key, fine_tuning=True) is Rule.MUST_EQUAL for d in found)
        advice = "start a new run" if fixed else "start a new run from the checkpoint's weights with --fine-tune"
        raise CheckpointError(
            "these differ from the checkpoint and may not change: "
            + "; ".join(map(str, wrong))
            + f"; keep the checkpoint's values, or {advice}"
        )


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from _flatten(item, f"{path}.")
        else:
            yield path, item
