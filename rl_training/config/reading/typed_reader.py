"""Reads the nodes of a document as the types that a settings class expects, and records every fault."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from rl_training.config import document
from rl_training.config.document import ListNode, MapNode, Node, Place, Scalar
from rl_training.config.parsing import expand_json
from rl_training.config.suggestions import find_similar_word, suggest_key
from rl_training.errors import one_line
from rl_training.security.secrets import is_secret_name, redact_text

KeyPath = tuple[str | int, ...]

LONGEST_SHOWN = 60
"""Most characters of a value that a message repeats."""

UNREADABLE = object()
"""Takes the place of a value whose fault is already recorded."""


@dataclass(frozen=True)
class Fault:
    """One fault in the settings."""

    place: Place
    path: KeyPath
    message: str
    others: tuple[KeyPath, ...] = ()
    """The further settings that it concerns, if they are valid by themselves but not together."""

    def __str__(self) -> str:
        place, path = str(self.place), one_line(".".join(map(str, self.path)))
        key = place.removeprefix("--set ")
        if key != place and path.startswith(key):  # `--set seed` names the key already
            return f"--set {path}: {self.message}"
        return f"{place}: {path}: {self.message}"


class TypedReader:
    """Reads nodes as the types that a settings class expects, and records the faults."""

    def __init__(self, root: type[BaseModel]) -> None:
        """Starts without faults; `root` is the settings class of the top level."""
        self.root = root
        self.faults: list[Fault] = []

    def read(self, node: Node, kind: Any, path: KeyPath) -> Any:
        """Returns the value of `node` as the type `kind`, or a placeholder if the value has a fault."""
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin in (Union, UnionType):
            return self._read_union(node, arguments, path)
        if origin is Literal:
            return self._read_literal(node, arguments, path)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self.read_section(node, kind, path)
        if origin in (dict, Mapping):
            return self._read_mapping(node, arguments[1] if arguments else Any, path)
        if origin in (list, tuple):
            return self._read_list(node, arguments or (Any, ...), path)
        if kind in document.READERS:
            return self._read_scalar(node, kind, path)
        return self._read_untyped(node, path)

    def read_section(self, node: Node, model: type[BaseModel], path: KeyPath) -> Any:
        """Returns the known keys of a mapping, read by the fields of `model`; other keys are faults."""
        bare = getattr(model, "bare_field", None)
        node = expand_json(node)
        if bare is not None and isinstance(node, Scalar) and not document.is_null(node):
            return {bare: self._read_scalar(node, str, path)}
        if not isinstance(node, MapNode):
            return self.refuse(node, path, getattr(model, "expected_form", "expected a mapping"))
        values = {}
        for key, item in self._list_entries(node, path):
            if key in model.model_fields:
                values[key] = self.read(item, model.model_fields[key].annotation, (*path, key))
                continue
            advice, meant = suggest_key(key, path, model, self.root)
            self.faults.append(Fault(item.place, (*path, key), f"unknown key; {advice}"))
            if meant is not None and isinstance(item, MapNode):  # also check a section under a wrong name
                self.read_section(item, meant, (*path, key))
        return values

    def refuse(self, node: Node, path: KeyPath, expected: str) -> Any:
        """Records that the value at `path` is not what is expected."""
        self.faults.append(Fault(node.place, path, f"got {format_node(node, path)}, {expected}"))
        return UNREADABLE

    def _list_entries(self, node: MapNode, path: KeyPath) -> Iterable[tuple[str, Node]]:
        for key, first, again in node.repeated:
            where = f" (lines {first.line} and {again.line})" if again.line else ""
            self.faults.append(Fault(again, (*path, key), f"given twice{where}; keep one"))
        return node.entries.items()

    def _read_union(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        if NoneType in kinds and isinstance(node, Scalar) and document.is_null(node):
            return None
        rest = [kind for kind in kinds if kind is not NoneType]
        if rest == [int, float]:  # keeps whether a number was written as a whole one
            return self._read_scalar(node, Real, path)
        rest.sort(key=lambda kind: kind is str)  # almost anything can be read as text, so text is tried last
        trials = [TypedReader(self.root) for _ in rest]
        for kind, trial in zip(rest, trials, strict=True):
            value = trial.read(node, kind, path)
            if not trial.faults:
                return value
        if len(rest) == 1:
            self.faults += trials[0].faults
            return UNREADABLE
        return self.refuse(node, path, "expected " + " or ".join(map(_name_type, rest)))

    def _read_literal(self, node: Node, options: tuple[Any, ...], path: KeyPath) -> Any:
        for kind in dict.fromkeys(type(option) for option in options):
            value = TypedReader(self.root).read(node, kind, path)
            if any(type(option) is kind and option == value for option in options):
                return value
        words = [str(option) for option in options]
        close = find_similar_word(str(node.value), words) if isinstance(node, Scalar) else None
        hint = f" (did you mean {close}?)" if close else ""
        return self.refuse(node, path, f"expected {' or '.join(words)}{hint}")

    def _read_mapping(self, node: Node, kind: Any, path: KeyPath) -> Any:
        node = expand_json(node)
        if not isinstance(node, MapNode):
            return self.refuse(node, path, 'expected a mapping, such as {name: value} (as JSON: {"name": value})')
        return {key: self.read(item, kind, (*path, key)) for key, item in self._list_entries(node, path)}

    def _read_list(self, node: Node, kinds: tuple[Any, ...], path: KeyPath) -> Any:
        node = expand_json(node)
        if not isinstance(node, ListNode):
            return self.refuse(node, path, "expected a list, such as [a, b]")
        each = kinds if len(kinds) == len(node.items) and Ellipsis not in kinds else (kinds[0],) * len(node.items)
        items = zip(node.items, each, strict=True)
        return [self.read(item, kind, (*path, i)) for i, (item, kind) in enumerate(items)]

    def _read_scalar(self, node: Node, kind: type, path: KeyPath) -> Any:
        expected = f"expected {document.EXPECTED[kind]}"
        if not isinstance(node, Scalar):
            return self.refuse(node, path, expected)
        try:
            _check_unicode(node)
            return document.READERS[kind](node)
        except ValueError as error:
            return self.refuse(node, path, str(error) or expected)

    def _read_untyped(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, MapNode):
            return {key: self._read_untyped(item, (*path, key)) for key, item in self._list_entries(node, path)}
        if isinstance(node, ListNode):
            return [self._read_untyped(item, (*path, i)) for i, item in enumerate(node.items)]
        try:
            _check_unicode(node)
            return document.read_untyped(node)
        except ValueError as error:
            self.refuse(node, path, str(error))
            return None


def _check_unicode(node: Scalar) -> None:
    # Python turns bytes of a command line that are not UTF-8 into lone surrogates, which no file can hold.
    if isinstance(node.value, str) and any("\ud800" <= character <= "\udfff" for character in node.value):
        raise ValueError("expected text in UTF-8")


def _name_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is Annotated:
        return _name_type(get_args(kind)[0])
    return "a mapping" if get_origin(kind) is dict else document.EXPECTED.get(kind, str(kind))


def format_node(node: Node, path: KeyPath) -> str:
    """Returns a short description of `node` for messages, on one line and without secrets."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if any(is_secret_name(str(key)) for key in path):
        return "a value (hidden)"
    if document.is_null(node):
        return "nothing (null)"
    if not isinstance(node.value, str):
        return json.dumps(node.value)
    text = redact_text(node.value).encode("utf-8", "backslashreplace").decode()
    cut = text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
    quoted = json.dumps(cut, ensure_ascii=False)
    return quoted[1:-1] if node.style == "plain" else f"the text {quoted}"
