"""Reads a document by the types of a settings class: what each value stands for, and which keys are unknown.

It checks types and spelling; ranges and combinations are pydantic's (`checking.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from rl_training.config.document import ListNode, MapNode, Node, Place, Scalar
from rl_training.config.reading import scalars
from rl_training.config.reading.yaml_text import from_json
from rl_training.config.suggestions import nearest_word, suggestion
from rl_training.errors import one_line
from rl_training.security.secrets import is_secret_name, redact_text

KeyPath = tuple[str | int, ...]

UNREADABLE = object()
"""Stands in for a value whose fault is already recorded."""

LONGEST_SHOWN = 60
"""Characters of a value that a message repeats."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the settings."""

    place: Place
    path: KeyPath
    message: str

    def __str__(self) -> str:
        place, path = str(self.place), one_line(".".join(map(str, self.path)))
        if place.startswith("--set ") and path.startswith(
            place.removeprefix("--set ")
        ):  # `--set seed` says the key already
            return f"--set {path}: {self.message}"
        return f"{place}: {path}: {self.message}"


class TypedReader:
    """Reads nodes as the types that a settings class wants, and keeps the faults it finds."""

    def __init__(self, root: type[BaseModel]) -> None:
        """Starts without faults; `root` is the settings class of the top level."""
        self.root = root
        self.faults: list[Fault] = []

    def value(self, node: Node, kind: Any, path: KeyPath) -> Any:
        """Returns the value of `node` as the type `kind`, or `UNREADABLE`."""
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin in (Union, UnionType):
            return self._union(node, arguments, path)
        if origin is Literal:
            return self._literal(node, arguments, path)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self.section(node, kind, path)
        if origin in (dict, Mapping):
            return self._mapping(node, arguments[1] if arguments else Any, path)
        if origin in (list, tuple):
            return self._list(node, arguments or (Any, ...), path)
        if kind in scalars.READERS:
            return self._scalar(node, kind, path)
        return self._untyped(node, path)

    def section(self, node: Node, model: type[BaseModel], path: KeyPath) -> Any:
        """Returns the known keys of a mapping, read by the fields of `model`; the others are faults."""
        bare = getattr(model, "bare_field", None)
        node = from_json(node)
        if bare is not None and isinstance(node, Scalar) and not scalars.is_null(node):
            return {bare: self._scalar(node, str, path)}
        if not isinstance(node, MapNode):
            return self.refuse(node, path, "expected a mapping; leave the key out for defaults")
        values = {}
        for key, item in self._entries(node, path):
            if key in model.model_fields:
                values[key] = self.value(item, model.model_fields[key].annotation, (*path, key))
            else:
                self._unknown(key, item, model, path)
        return values

    def refuse(self, node: Node, path: KeyPath, expected: str) -> Any:
        """Records that the value at `path` is not what is expected."""
        self.faults.append(Fault(node.place, path, f"got {shown(node, path)}, {expected}"))
        return UNREADABLE

    def _entries(self, node: MapNode, path: KeyPath) -> Iterable[tuple[str, Node]]:
        for key, first, again in node.repeated:
            where = f" (lines {first.line} and {again.line})" if again.line else ""
            self.faults.append(Fault(again, (*path, key), f"given twice{where}; keep one"))
        return node.entries.items()

    def _unknown(self, key: str, node: Node, model: type[BaseModel], path: KeyPath) -> None:
        advice, meant = suggestion(key, path, model, self.root)
        self.faults.append(Fault(node.place, (*path, key), f"unknown key; {advice}"))
        if meant is not None and isinstance(node, MapNode):  # a section under another name: look inside as well
            self.section(node, meant, (*path, key))

    def _union(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        if NoneType in kinds and isinstance(node, Scalar) and scalars.is_null(node):
            return None
        rest = [kind for kind in kinds if kind is not NoneType]
        rest.sort(key=lambda kind: kind is str)  # almost anything can be read as text, so text comes last
        trials = [TypedReader(self.root) for _ in rest]
        for kind, trial in zip(rest, trials, strict=True):
            value = trial.value(node, kind, path)
            if not trial.faults:
                return value
        if len(rest) == 1:
            self.faults += trials[0].faults
            return UNREADABLE
        return self.refuse(node, path, "expected " + " or ".join(map(_in_words, rest)))

    def _literal(self, node: Node, options: tuple[Any, ...], path: KeyPath) -> Any:
        for kind in dict.fromkeys(type(option) for option in options):
            value = TypedReader(self.root).value(node, kind, path)
            if any(type(option) is kind and option == value for option in options):
                return value
        words = [str(option) for option in options]
        close = nearest_word(str(node.value), words) if isinstance(node, Scalar) else None
        return self.refuse(
            node, path, f"expected {' or '.join(words)}" + (f" (did you mean {close}?)" if close else "")
        )

    def _mapping(self, node: Node, kind: Any, path: KeyPath) -> Any:
        node = from_json(node)
        if not isinstance(node, MapNode):
            return self.refuse(node, path, 'expected a mapping, such as {name: value} (as JSON: {"name": value})')
        return {key: self.value(item, kind, (*path, key)) for key, item in self._entries(node, path)}

    def _list(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        node = from_json(node)
        if not isinstance(node, ListNode):
            return self.refuse(node, path, "expected a list, such as [a, b]")
        each = kinds if len(kinds) == len(node.items) and Ellipsis not in kinds else (kinds[0],) * len(node.items)
        items = zip(node.items, each, strict=True)
        return [self.value(item, kind, (*path, i)) for i, (item, kind) in enumerate(items)]

    def _scalar(self, node: Node, kind: type, path: KeyPath) -> Any:
        expected = f"expected {scalars.EXPECTED[kind]}"
        if not isinstance(node, Scalar):
            return self.refuse(node, path, expected)
        try:
            scalars.check_unicode(node)
            return scalars.READERS[kind](node)
        except ValueError as error:
            return self.refuse(node, path, str(error) or expected)

    def _untyped(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, MapNode):
            return {key: self._untyped(item, (*path, key)) for key, item in self._entries(node, path)}
        if isinstance(node, ListNode):
            return [self._untyped(item, (*path, i)) for i, item in enumerate(node.items)]
        try:
            scalars.check_unicode(node)
            return scalars.untyped(node)
        except ValueError as error:
            self.refuse(node, path, str(error))
            return None


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return scalars.EXPECTED.get(kind, str(kind))


def shown(node: Node, path: KeyPath) -> str:
    """Returns what was got, short, on one line and without secrets."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if any(is_secret_name(str(key)) for key in path):
        return "a value (hidden)"
    if scalars.is_null(node):
        return "nothing (null)"
    if not isinstance(node.value, str):
        return json.dumps(node.value)
    text = redact_text(node.value).encode("utf-8", "backslashreplace").decode()
    cut = text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
    quoted = json.dumps(cut, ensure_ascii=False)
    return quoted[1:-1] if node.style == "plain" else f"the text {quoted}"
