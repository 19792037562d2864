"""Checks a document against a settings type and reports every fault at once, each with its place and key path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from rl_training.config import scalars
from rl_training.config.document import ListNode, MapNode, Node, Place, Scalar, nearest, place_of
from rl_training.config.reader import read_value
from rl_training.config.secrets import REFERENCE, is_secret_name, redact_text
from rl_training.config.settings import Settings, TrainConfig
from rl_training.config.suggestions import nearest_word, suggestion
from rl_training.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=TrainConfig)
KeyPath = tuple[str | int, ...]

UNREADABLE = object()
"""Stands in for a value whose fault is already recorded."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the settings."""

    place: Place
    path: KeyPath
    message: str

    def __str__(self) -> str:
        where = f"{self.place.source}:{self.place.line}" if self.place.line else self.place.source
        return f"{where}: {dotted(self.path)}: {self.message}" if self.path else f"{where}: {self.message}"


def dotted(path: KeyPath) -> str:
    """Returns a key path as it is written in overrides and messages."""
    return ".".join(map(str, path))


def check(document: MapNode, config_type: type[ConfigT]) -> ConfigT:
    """Returns the settings in `document`.

    Raises:
        ConfigError: One line for each fault.
    """
    config, faults = examine(document, config_type)
    if config is None:
        raise ConfigError("\n".join(str(fault) for fault in in_order(faults)))
    return config


def examine(document: MapNode, config_type: type[ConfigT]) -> tuple[ConfigT | None, list[Fault]]:
    """Returns the settings in `document` and no faults, or None and all of its faults."""
    reading = Reading(config_type)
    values = reading.model(document, config_type, ())
    faults = reading.faults
    try:
        config = config_type.model_validate(values)
    except ValidationError as error:
        faults += _faults_of(error, document)
    else:
        if not faults:
            return config, []
    return None, [*faults, *_combinations_of_the_rest(document, values, config_type, faults)]


def in_order(faults: list[Fault]) -> list[Fault]:
    """Returns faults by source, in the order in which the sources were met, and by line; each one once."""
    unique = list(dict.fromkeys(faults))
    sources = list(dict.fromkeys(fault.place.source for fault in unique))
    return sorted(unique, key=lambda fault: (sources.index(fault.place.source), fault.place.line or 0))


def _faults_of(error: ValidationError, document: MapNode) -> list[Fault]:
    faults: list[Fault] = []
    for problem in error.errors(include_url=False):
        if problem["input"] is UNREADABLE:
            continue
        node, depth = nearest(document, problem["loc"])
        path = problem["loc"][:depth]
        if problem["type"] == "combination":
            for keys, text in problem["ctx"]["faults"]:
                key_path = (*path, *keys[0].split("."))
                faults.append(Fault(_first_place(document, path, keys), key_path, text))
        elif problem["type"] == "missing":
            faults.append(Fault(node.place, problem["loc"], "is required and missing"))
        else:
            expected = _expectation(problem["msg"])
            faults.append(Fault(node.place, path, f"got {shown(node, path)}, {expected}"))
    return faults


def _first_place(document: MapNode, path: KeyPath, keys: tuple[str, ...]) -> Place:
    """Returns the place of the first of `keys` that was written."""
    for key in keys:
        key_path = (*path, *key.split("."))
        if nearest(document, key_path)[1] == len(key_path):
            return place_of(document, key_path)
    return place_of(document, path)


def _combinations_of_the_rest(
    document: MapNode, values: Any, config_type: type[TrainConfig], faults: list[Fault]
) -> list[Fault]:
    """Returns the combinations that can't work even with the faulty keys at their defaults."""
    faulty = {fault.path for fault in faults}
    try:
        config_type.model_validate(_without(values, faulty))
    except ValidationError as error:
        combinations = [problem for problem in error.errors() if problem["type"] == "combination"]
        concerned = [
            (tuple(tuple(key.split(".")) for key in keys)) for p in combinations for keys, _ in p["ctx"]["faults"]
        ]
        found = [fault for fault in _faults_of(error, document) if fault.path not in faulty]
        clean = {keys[0] for keys in concerned if not faulty.intersection(keys)}
        return [fault for fault in found if fault.path in clean]
    return []


def _without(values: Any, paths: set[KeyPath], here: KeyPath = ()) -> Any:
    if isinstance(values, Mapping):
        kept = {key: _without(item, paths, (*here, key)) for key, item in values.items() if (*here, key) not in paths}
        return {key: item for key, item in kept.items() if item is not UNREADABLE}
    return values


def _expectation(message: str) -> str:
    message = message.removeprefix("Value error, ")
    message = re.sub(r"^(Input|Value|String|Tuple|List|Dictionary) should (be |have |match )?", "expected ", message)
    return message[0].lower() + message[1:]


def shown(node: Node, path: KeyPath) -> str:
    """Returns what was got, short, on one line and without secrets."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if any(is_secret_name(str(key)) for key in path):
        return "a value (hidden)"
    if node.value is None or (node.style == "plain" and node.value in scalars.NULLS):
        return "nothing (null)"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    if not isinstance(node.value, str):
        return repr(node.value)
    text = redact_text(node.value)
    text = json.dumps(text[:57] + "..." if len(text) > 60 else text, ensure_ascii=False)
    return text[1:-1] if node.style == "plain" else f"the text {text}"


class Reading:
    """Reads a document by the types of a settings class, and records what can't be read."""

    def __init__(self, root: type[Settings]) -> None:
        self.root = root
        self.faults: list[Fault] = []

    def refuse(self, node: Node, path: KeyPath, expected: str) -> Any:
        """Records that the value at `path` is not what is expected."""
        self.faults.append(Fault(node.place, path, f"got {shown(node, path)}, {expected}"))
        return UNREADABLE

    def value(self, node: Node, kind: Any, path: KeyPath) -> Any:
        """Returns the value of `node` as the type `kind`, or `UNREADABLE`; pydantic checks it further."""
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self.union(node, arguments, path)
        if origin is Literal:
            return self.literal(node, arguments, path)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self.model(node, kind, path)
        if kind is dict or origin in (dict, Mapping):
            return self.mapping(node, arguments[1] if arguments else Any, path)
        if kind in (list, tuple) or origin in (list, tuple):
            return self.list(node, arguments or (Any, ...), path)
        if kind in (bool, int, float, str, Path):
            return self.scalar(node, kind, path)
        return self.untyped(node, path)

    def union(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        if NoneType in kinds and isinstance(node, Scalar) and _is_null(node):
            return None
        rest = sorted((kind for kind in kinds if kind is not NoneType), key=lambda kind: kind in (str, Path))
        if len(rest) == 1:
            return self.value(node, rest[0], path)
        for kind in rest:
            trial = Reading(self.root)
            value = trial.value(node, kind, path)
            if not trial.faults:
                return value
        return self.refuse(node, path, "expected " + " or ".join(getattr(kind, "__name__", str(kind)) for kind in rest))

    def literal(self, node: Node, options: tuple[Any, ...], path: KeyPath) -> Any:
        for kind in dict.fromkeys(type(option) for option in options):
            value = Reading(self.root).value(node, kind, path)
            if any(value == option and type(value) is type(option) for option in options):
                return value
        expected = "expected " + " or ".join(map(str, options))
        close = nearest_word(str(node.value), [str(o) for o in options]) if isinstance(node, Scalar) else None
        return self.refuse(node, path, expected + (f" (did you mean {close}?)" if close else ""))

    def model(self, node: Node, model: type[BaseModel], path: KeyPath) -> Any:
        bare = getattr(model, "bare_field", None)
        if bare is not None and isinstance(node, Scalar) and isinstance(node.value, str) and not _is_null(node):
            return {bare: self.scalar(node, str, path)}
        node = _from_json(node)
        if not isinstance(node, MapNode):
            return self.refuse(node, path, "expected a mapping" + (" (leave the key out for defaults)" if path else ""))
        values = {}
        for key, item in node.entries.items():
            field = model.model_fields.get(key)
            if field is not None:
                values[key] = self.value(item, field.annotation, (*path, key))
            else:
                self.unknown(key, item, model, path)
        return values

    def unknown(self, key: str, node: Node, model: type[BaseModel], path: KeyPath) -> None:
        """Records an unknown key; looks inside, where it is a section under another name."""
        advice, section = suggestion(key, path, model, self.root)
        self.faults.append(Fault(node.place, (*path, key), f"unknown key; {advice}"))
        if section is not None and isinstance(node, MapNode):
            inside = Reading(self.root)
            inside.model(node, section, (*path, key))
            self.faults += inside.faults

    def mapping(self, node: Node, kind: Any, path: KeyPath) -> Any:
        node = _from_json(node)
        if not isinstance(node, MapNode):
            return self.refuse(node, path, 'expected a mapping, such as {name: value} (as JSON: {"name": value})')
        return {key: self.value(item, kind, (*path, key)) for key, item in node.entries.items()}

    def list(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        if not isinstance(node, ListNode):
            return self.refuse(node, path, "expected a list, such as [a, b]")
        of_each = kinds if len(kinds) == len(node.items) and Ellipsis not in kinds else [kinds[0]] * len(node.items)
        return [self.value(item, kind, (*path, i)) for i, (item, kind) in enumerate(zip(node.items, of_each))]

    def untyped(self, node: Node, path: KeyPath) -> Any:
        """Returns what `node` stands for where nothing is known of what is wanted (`env_kwargs`)."""
        if isinstance(node, MapNode):
            return {key: self.untyped(item, (*path, key)) for key, item in node.entries.items()}
        if isinstance(node, ListNode):
            return [self.untyped(item, (*path, i)) for i, item in enumerate(node.items)]
        try:
            value = scalars.untyped(node.value) if node.style == "plain" else scalars.finite(node.value)
        except ValueError as error:
            return self.refuse(node, path, str(error))
        return value

    def scalar(self, node: Node, kind: type, path: KeyPath) -> Any:
        if not isinstance(node, Scalar):
            return self.refuse(node, path, f"expected {_EXPECTED[kind]}")
        try:
            value = _READERS[kind](node)
        except ValueError as error:
            return self.refuse(node, path, str(error) or f"expected {_EXPECTED[kind]}")
        return value


def _is_null(node: Scalar) -> bool:
    return node.value is None or (node.style == "plain" and node.value in scalars.NULLS)


def _from_json(node: Node) -> Node:
    """Returns the mapping in a JSON text (a mapping that was encoded twice on its way), or `node` itself."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.lstrip().startswith("{"):
        return node
    try:
        json.loads(node.value)
    except ValueError:
        return node
    inside = read_value(node.value, node.place.source)
    return MapNode(inside.entries, node.place) if isinstance(inside, MapNode) else node


def _text(node: Scalar) -> str:
    if _is_null(node) or isinstance(node.value, bool | float):
        raise ValueError
    text = str(node.value)
    if REFERENCE.search(text):
        raise ValueError("expected text; references to secrets are resolved in env_kwargs and kwargs of wrappers only")
    return text


def _path(node: Scalar) -> str:
    text = _text(node)
    if not text:
        raise ValueError
    return text


def _number(node: Scalar) -> int | float:
    value = node.value
    if isinstance(value, str):
        if node.style == "quoted":
            numeric = scalars.looks_numeric(value)
            raise ValueError("expected a number, without quotes" if numeric else "")
        value = scalars.number(value)
    if value is None or isinstance(value, bool):
        raise ValueError
    return scalars.finite(value)  # type: ignore[no-any-return]


def _integer(node: Scalar) -> int:
    value = _number(node)
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > scalars.LARGEST_EXACT:
            raise ValueError
        return int(value)
    return value


def _float(node: Scalar) -> float:
    try:
        return float(_number(node))
    except OverflowError:
        raise ValueError("too large for a number") from None


def _switch(node: Scalar) -> bool:
    if isinstance(node.value, bool):
        return node.value
    if isinstance(node.value, str) and node.style != "quoted":
        if node.value in scalars.TRUE | scalars.TRUE_11:
            return True
        if node.value in scalars.FALSE | scalars.FALSE_11:
            return False
    raise ValueError


_READERS = {bool: _switch, int: _integer, float: _float, str: _text, Path: _path}
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
