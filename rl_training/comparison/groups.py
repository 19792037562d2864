"""Groups of runs: those with the same settings, whose seeds differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from string import ascii_uppercase
from typing import Any

from rl_training.comparison.recorded_run import RecordedRun
from rl_training.comparison.sources import LeftOut
from rl_training.config.resume_rules import flatten_settings, is_listed

WITHOUT_EFFECT = (
    *("seed", "run_dir", "run_name", "tags", "experiment", "job"),
    *("logging", "metrics", "tracking", "checkpoint", "promotion", "validation"),
    *("evaluation.every", "evaluation.num_envs", "evaluation.video"),
)
"""Settings that may differ between the runs of a group: the seed, and those that do not change a result."""

SHOWN = 3
"""The most settings that the label of a group shows."""


@dataclass(frozen=True)
class Group:
    """Runs with the same settings and different seeds."""

    name: str
    """A letter."""
    runs: tuple[RecordedRun, ...]
    differing: Mapping[str, Any]
    """The value of each setting that is not the same in all groups, by dotted key; one that the group's algorithm does
    not have is left out."""
    label: str
    """The most telling of these settings, for a table."""


def form_groups(runs: Sequence[RecordedRun]) -> tuple[list[Group], list[LeftOut]]:
    """Returns the groups of runs in the order of their first runs, and the runs that are left out.

    A run that repeats the seed of another run of its group adds nothing, because it is the same training.
    """
    by_settings: dict[str, dict[int, RecordedRun]] = {}
    left_out = []
    for run in runs:
        group = by_settings.setdefault(json.dumps(select_settings(run), sort_keys=True), {})
        if run.config.seed in group:
            other = group[run.config.seed].name
            left_out.append(LeftOut(run.name, f"has the settings and the seed of {other}, so it is no further run"))
        else:
            group[run.config.seed] = run
    settings: list[dict[str, Any]] = [json.loads(text) for text in by_settings]
    differing, labels = find_differing_keys(settings), make_labels(settings)
    groups = [
        Group(name, _order_by_seed(by_seed), {key: own[key] for key in differing if key in own}, label)
        for name, own, label, by_seed in zip(_iterate_names(), settings, labels, by_settings.values(), strict=False)
    ]
    return groups, left_out


def _order_by_seed(by_seed: Mapping[int, RecordedRun]) -> tuple[RecordedRun, ...]:
    """Returns the runs in an order that does not depend on when they began, as the resampling draws by position."""
    return tuple(by_seed[seed] for seed in sorted(by_seed))


def select_settings(run: RecordedRun) -> dict[str, Any]:
    """Returns the settings that make a group, by dotted key."""
    return {key: value for key, value in flatten_settings(run.config).items() if not is_listed(key, WITHOUT_EFFECT)}


def find_differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys whose values are not the same in all settings, in the order in which they appear."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({json.dumps(each.get(key), sort_keys=True) for each in settings}) > 1]


def make_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a label of each group: its algorithm, if that differs, and what differs between groups with that."""
    by_algo: dict[str, list[Mapping[str, Any]]] = {}
    for each in settings:
        by_algo.setdefault(each["algo"], []).append(each)
    keys = {algo: find_differing_keys(group) for algo, group in by_algo.items()}
    return [_make_label(each, keys[each["algo"]], with_algo=len(by_algo) > 1) for each in settings]


def _make_label(settings: Mapping[str, Any], keys: Sequence[str], *, with_algo: bool) -> str:
    shown = [f"{key}={format_value(settings.get(key))}" for key in keys[:SHOWN]]
    more = len(keys) - len(shown)
    return ", ".join([*([settings["algo"]] if with_algo else []), *shown, *([f"{more} more"] if more else [])])


def format_value(value: Any) -> str:
    """Returns the value of a setting as a short text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _iterate_names() -> Iterator[str]:
    """Yields A, B, ..., Z, AA, AB and so on."""
    for length in count(1):
        yield from ("".join(letters) for letters in product(ascii_uppercase, repeat=length))
