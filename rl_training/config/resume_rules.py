"""Which settings may differ between a checkpoint and the run that continues from it: one rule per field, in one table.

A field without a rule must be equal, so whatever an algorithm adds is part of the run unless it is listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

from rl_training.config.settings import AUTO, TrainConfig
from rl_training.errors import CheckpointError
from rl_training.security.secrets import redact

ConfigT = TypeVar("ConfigT", bound=TrainConfig)

Continuation = Literal["resume", "fine_tune", "explore"]
"""How a run continues from a checkpoint: `resume` continues the complete state, `fine_tune` keeps the weights alone,
and `explore` continues the complete state with other hyperparameters, as a fork in population-based training does."""


class Rule(StrEnum):
    """How a field may change between a checkpoint and the run that continues from it."""

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

INTERCHANGEABLE = ("sync", "async", "split", "ray")
"""Kinds of `vectorization` that step environments with identical results, so each may replace another."""

LEARNED = "auto"
"""The value of `entropy_coef` with which SAC learns it, so that its checkpoints have an optimizer of it."""

FIXED_IN_FINE_TUNING = ("algo", "network", "dueling", "critics", "quantiles", "normalization.observation")
"""Dotted paths of the settings that fine-tuning may not change, because they define what the weights mean."""

EXPLORABLE = (
    "learning_rate", "learning_rate_schedule", "gamma", "batch_size", "max_grad_norm", "entropy_coef",
    "normalization.clip", "epochs", "clip_range", "clip_range_schedule", "value_clip", "gae_lambda", "value_coef",
    "normalize_advantage", "target_kl", "adam_epsilon", "n_step", "exploration", "target_update_every", "double", "tau",
    "target_entropy", "policy_delay", "exploration_noise", "target_noise", "target_noise_clip", "drop_quantiles",
)  # fmt: skip
"""Dotted paths of the settings that a fork may change while it continues the complete state of another run.

None of them decides the shape of a part of that state. The number of updates from a replay buffer is a function of the
step alone, so `train_freq`, `gradient_steps` and `learning_starts`, which define that function, are not among them.
"""


def get_rule(key: str, how: Continuation = "resume") -> Rule:
    """Returns the rule for a setting.

    Args:
        key: The dotted path of the setting.
        how: How the run continues from the checkpoint.
    """
    if how == "fine_tune":
        return Rule.MUST_EQUAL if is_listed(key, FIXED_IN_FINE_TUNING) else Rule.MAY_CHANGE
    if how == "explore" and is_listed(key, EXPLORABLE):
        return Rule.MAY_CHANGE
    return RULES.get(key.split(".")[0], Rule.MUST_EQUAL)


def is_explorable(key: str, values: Iterable[Any]) -> bool:
    """Returns whether a fork may change a setting from any of these values to any other; see `EXPLORABLE`."""
    return is_listed(key, EXPLORABLE) and not (key == "entropy_coef" and LEARNED in values)


def is_listed(key: str, paths: Sequence[str]) -> bool:
    """Returns whether dotted paths name a setting or a section that it belongs to."""
    return any(key == path or key.startswith(f"{path}.") for path in paths)


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


def find_differences(before: TrainConfig, after: TrainConfig, how: Continuation = "resume") -> list[Difference]:
    """Returns every setting that differs, by dotted path. Secrets are not compared: a checkpoint contains none."""
    old, new = (flatten_settings(config) for config in (before, after))
    return [
        make_difference(key, old.get(key), new.get(key), how)
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not (_is_filled(key, old, new) or _is_filled(key, new, old))
    ]


def _is_filled(key: str, empty: Mapping[str, Any], filled: Mapping[str, Any]) -> bool:
    """Returns whether a mapping is empty on one side and not on the other, where each of its keys is a difference."""
    return empty.get(key) == {} and any(other.startswith(f"{key}.") for other in filled)


def make_difference(key: str, before: Any, after: Any, how: Continuation = "resume") -> Difference:
    """Returns the difference of the setting at a dotted path, with its rule."""
    rule = get_rule(key, how)
    if how == "explore" and is_listed(key, EXPLORABLE) and not is_explorable(key, (before, after)):
        rule = Rule.MUST_EQUAL
    if key == "vectorization" and before in INTERCHANGEABLE and after in INTERCHANGEABLE:
        rule = Rule.MAY_CHANGE
    if key in ("env_id", "wrappers", "training_wrappers", "network.body.name") and _is_moved(before, after):
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
        fixed = any(get_rule(d.key, "fine_tune") is Rule.MUST_EQUAL for d in found)
        advice = "start a new run" if fixed else "start a new run from the checkpoint's weights with --fine-tune"
        raise CheckpointError(
            "these differ from the checkpoint and may not change: "
            + "; ".join(map(str, wrong))
            + f"; keep the checkpoint's values, or {advice}"
        )


def keep_vectorization(config: ConfigT, before: TrainConfig) -> ConfigT:
    """Returns the settings of a run that continues a checkpoint, with its kind of `vectorization` in place of `auto`.

    Args:
        config: The settings.
        before: The settings of the checkpoint.
    """
    return config.model_copy(update={"vectorization": before.vectorization}) if config.vectorization == AUTO else config


def flatten_settings(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings as JSON values by dotted key, without secrets."""
    return dict(_flatten(redact(config.model_dump(mode="json"), references=True)))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from _flatten(item, f"{path}.")
        else:
            yield path, item
