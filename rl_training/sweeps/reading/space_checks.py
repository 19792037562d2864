"""Finds what is wrong with a sweep's space: each value that it may choose is tried in the base config."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rl_training.config.checking import check_settings
from rl_training.config.document import LARGEST_EXACT, ListNode, MapNode, Node, Place, make_node, to_plain_data
from rl_training.config.parsing import expand_dotted, expand_json, merge
from rl_training.config.reading.typed_reader import Fault, KeyPath, TypedReader
from rl_training.config.resume_rules import RULES, Rule, is_explorable
from rl_training.config.settings import TrainConfig
from rl_training.config.suggestions import suggest_key
from rl_training.security.secrets import holds_secret
from rl_training.sweeps.space import (
    Choices,
    build_space,
    build_values,
    find_section,
    find_type,
    find_value,
    is_same,
    is_whole,
    list_members,
    order_by_conditions,
    read_conditions,
)
from rl_training.sweeps.sweep_config import Parameter, SweepConfig

FIXED: Mapping[str, str] = {
    **{key: "it has no effect on what is learned" for key, rule in RULES.items() if rule is Rule.MAY_CHANGE},
    "algo": "each algorithm has settings of its own; make a sweep for each, and compare their winners",
    "env_id": "returns in two environments can't be compared",
    "evaluation": "trials are compared by their evaluations, which must be the same",
    "seed": "the sweep sets it; give the number of seeds with seeds",
    "total_timesteps": "trials are compared at the same number of steps",
    "device": "it belongs to the machine",
    "threads": "it belongs to the machine",
    "ranks": "it belongs to the machine",
}
"""Settings that a sweep does not vary, and why."""

MOST_CHECKED = 100
"""A larger space, which is a fault itself, is not checked further."""


def check_space(document: MapNode, settings: SweepConfig | None, base: TrainConfig) -> list[Fault]:
    """Returns the faults of a sweep's space that its base config shows.

    Args:
        document: The sweep's document, with dotted keys in `space`.
        settings: The sweep's settings; None if they have faults, which are not repeated here.
        base: The base config.
    """
    space = document.entries.get("space")
    if not isinstance(space, MapNode) or (settings is None and len(space.entries) > MOST_CHECKED):
        return []
    checker = _SpaceChecker(space, base)
    faults = list(checker.check())
    if settings is not None and settings.method.name == "grid" and not faults:
        faults = list(_check_grid(document, settings, base))
    if settings is not None and settings.method.name == "population" and not faults:
        faults = list(_check_population(space, settings, base))
    return faults


class _SpaceChecker:
    """Checks the parameters of one space."""

    def __init__(self, space: MapNode, base: TrainConfig) -> None:
        self._nodes = space.entries
        self._place = space.place
        self._base = base
        self._document = make_node(to_plain_data(base.model_dump()), Place("base config"), text="quoted")
        found = {key: check_settings(node, Parameter)[0] for key, node in self._nodes.items()}
        self._parameters = {key: parameter for key, parameter in found.items() if parameter is not None}

    def check(self) -> Iterator[Fault]:
        sound: dict[str, Parameter] = {}
        for key, node in self._nodes.items():
            faults = list(self._check_key(key, node))
            if not faults and key in self._parameters:
                faults = list(self._check_values(key, self._parameters[key]))
            if not faults and key in self._parameters:
                sound[key] = self._parameters[key]
            yield from faults
        for key, parameter in sound.items():
            for name, value in parameter.when.items():
                yield from self._check_condition(key, name, value, sound)
        if circular := order_by_conditions(self._parameters)[1]:
            names = ", ".join(circular)
            yield Fault(self._place, ("space",), f"got conditions in a circle among {names}; leave one of them out")

    def _check_key(self, key: str, node: Node) -> Iterator[Fault]:
        path: KeyPath = ("space", key)
        fixed = next((name for name in FIXED if _contains(name, key)), None)
        outer = next((name for name in self._nodes if name != key and _contains(name, key)), None)
        if fixed is not None:
            yield Fault(node.place, path, f"a sweep does not vary {fixed}: {FIXED[fixed]}")
        elif find_type(type(self._base), key) is None:
            yield Fault(node.place, path, f"unknown key; {_advise(key, type(self._base))}")
        elif outer is not None:
            yield Fault(node.place, path, f"got it beside {outer}, which contains it; keep one")
        elif key in self._parameters and _is_secret(key, self._parameters[key]):
            yield Fault(node.place, path, "got a secret, which would be recorded with each trial; leave it out")

    def _check_values(self, key: str, parameter: Parameter) -> Iterator[Fault]:
        kind, nodes = self._list_nodes(key)
        kinds = list_members(find_type(type(self._base), key))
        if kind != "choice" and not {int, float, Any} & {each for each in kinds if each in (int, float, Any)}:
            yield Fault(
                self._nodes[key].place, ("space", key), f"got a {kind} of a setting without numbers, expected choice"
            )
            return
        ends = parameter.ends
        whole = ends is not None and is_whole(key, self._base, ends)
        faults = []
        for i, node in enumerate(nodes):
            faults += [Fault(node.place, ("space", key, kind, i), text) for text in self._try(key, node)]
            if whole and ends is not None and abs(ends[i]) > LARGEST_EXACT:
                faults.append(Fault(node.place, ("space", key, kind, i), f"expected at most {LARGEST_EXACT:,}"))
        yield from faults
        values = build_values(parameter, key, self._base) if not faults else None
        if isinstance(values, Choices):
            texts = [json.dumps(value, sort_keys=True) for value in values.values]
            for i, (text, node) in enumerate(zip(texts, nodes, strict=True)):
                if text in texts[:i]:
                    yield Fault(node.place, ("space", key, kind, i), "given twice; keep one")

    def _list_nodes(self, key: str) -> tuple[str, tuple[Node, ...]]:
        """Returns the kind of a parameter, and the nodes of its choices or ends."""
        parameter = expand_json(self._nodes[key])
        assert isinstance(parameter, MapNode)
        kind = self._parameters[key].kind
        node = expand_json(parameter.entries[kind])
        assert isinstance(node, ListNode)
        return kind, node.items

    def _try(self, key: str, node: Node) -> Iterator[str]:
        """Yields what the settings say to a value, apart from faults that values of other parameters may mend."""
        assert isinstance(self._document, MapNode)
        document = merge(self._document, expand_dotted([(key, node)]))
        for fault in check_settings(document, type(self._base))[1]:
            concerned = [".".join(map(str, path)) for path in (fault.path, *fault.others)]
            varied = [name for name in self._nodes if name != key]
            if any(_overlap(name, other) for name in varied for other in concerned):
                continue
            yield fault.message if _overlap(concerned[0], key) else f"{concerned[0]}: {fault.message}"

    def _check_condition(self, key: str, name: str, value: Any, sound: Mapping[str, Parameter]) -> Iterator[Fault]:
        path: KeyPath = ("space", key, "when", name)
        place, kind = self._nodes[key].place, find_type(type(self._base), name)
        if kind is None:
            yield Fault(place, path, f"unknown key; {_advise(name, type(self._base))}")
            return
        if find_section(kind) is not None or any(other != name and _overlap(name, other) for other in self._nodes):
            yield Fault(place, path, "expected a single setting, or one that the space varies as it is")
            return
        reader = TypedReader(type(self._base))
        for item in value if isinstance(value, list) else [value]:
            reader.read(make_node(item, place, text="quoted"), kind, path)
        yield from reader.faults
        if reader.faults or (name in self._nodes and name not in sound):
            return
        if not any(self._can_be(name, item, sound) for item in read_conditions(value, name, self._base)):
            yield Fault(place, path, "never holds: the setting can't have this value; see space and the base config")

    def _can_be(self, name: str, value: Any, sound: Mapping[str, Parameter]) -> bool:
        if is_same(find_value(self._base, name), value):
            return True  # a parameter whose own conditions do not hold has the base config's value
        if name not in sound:
            return False
        values = build_values(sound[name], name, self._base)
        if isinstance(values, Choices):
            return values.holds(value)
        return isinstance(value, int | float) and values.low <= value <= values.high


def _check_grid(document: MapNode, settings: SweepConfig, base: TrainConfig) -> Iterator[Fault]:
    space = document.entries["space"]
    assert isinstance(space, MapNode)
    ranges = [key for key, parameter in settings.space.items() if parameter.choice is None]
    for key in ranges:
        yield Fault(space.entries[key].place, ("space", key), "got a range, expected choice: a grid has no ranges")
    if ranges:
        return
    try:
        count = len(build_space(settings.space, base).list_grid())
    except ValueError as error:
        yield Fault(space.place, ("space",), f"{error}; leave values out, or set method: random")
        return
    if count > settings.trials:
        place = document.entries.get("trials", space).place
        yield Fault(
            place, ("trials",), f"got {settings.trials}, expected {count} or more, the number of points of the grid"
        )


def _check_population(space: MapNode, settings: SweepConfig, base: TrainConfig) -> Iterator[Fault]:
    for dimension in build_space(settings.space, base).dimensions:
        values = dimension.values.values if isinstance(dimension.values, Choices) else ()
        unset = (find_value(base, dimension.key),) if dimension.when else ()
        if not is_explorable(dimension.key, (*values, *unset)):
            yield Fault(
                space.entries[dimension.key].place,
                ("space", dimension.key),
                "a fork of a population continues the state of another run, whose form depends on this setting; "
                "leave it out, or use method: tpe",
            )


def _advise(key: str, model: type[BaseModel]) -> str:
    """Says which setting an unknown dotted key may have meant."""
    section, names = model, key.split(".")
    for i, name in enumerate(names):
        if name not in section.model_fields:
            return suggest_key(name, tuple(names[:i]), section, model)[0]
        inner = find_section(section.model_fields[name].annotation)
        if inner is None:
            known = ".".join(names[: i + 1])
            return f"{known} has no settings of its own; give values of {known}"
        section = inner
    raise AssertionError(f"{key} is known")


def _is_secret(key: str, parameter: Parameter) -> bool:
    values = parameter.choice or parameter.ends or ()
    return holds_secret({key: list(values)}) or holds_secret(parameter.when)


def _contains(outer: str, key: str) -> bool:
    return key == outer or key.startswith(f"{outer}.")


def _overlap(first: str, second: str) -> bool:
    return _contains(first, second) or _contains(second, first)
