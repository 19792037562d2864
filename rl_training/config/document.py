"""A settings source as a tree of nodes, which remember where each value was written and how it was spelt.

Text becomes a number, a truth value or null only where the settings class expects one (`checking.py`). So
`run_name: 007` keeps its zeros, `1e-4` is a number, and `off` is false only for a switch. The spellings are those of
the core schema of YAML 1.2, with `_` allowed between digits. PyYAML follows YAML 1.1 instead, in which `1e-4` is text,
`007` is octal, `1:30` is ninety and `no` is false.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from rl_training.errors import ConfigError
from rl_training.security.secrets import KINDS, REFERENCE

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TRUE = frozenset({"true", "True", "TRUE"})
FALSE = frozenset({"false", "False", "FALSE"})
TRUE_11 = frozenset({"yes", "Yes", "YES", "on", "On", "ON"})
FALSE_11 = frozenset({"no", "No", "NO", "off", "Off", "OFF"})

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
FLOAT_PATTERN = rf"[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.(?:{_DIGITS})?)?)(?:[eE][-+]?[0-9]+)?"
_FLOAT = re.compile(FLOAT_PATTERN)
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_LEADING_ZERO = re.compile(rf"[-+]?0_?{_DIGITS}")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

LARGEST_EXACT = 2**53
"""The largest float up to which every whole number has a float of its own."""

MOST_DIGITS = 300
"""Longest number that is read, in characters."""


@dataclass(frozen=True)
class Place:
    """The place of a value: a file and its line (from 1), or another source such as `--set seed`."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class Scalar:
    """A single value."""

    value: Any
    """The text as it was spelt (`plain`, `quoted`), or a Python value (`python`)."""
    style: Literal["plain", "quoted", "python"]
    """Plain text may stand for a number, a truth value or null; quoted text is always text. Text from Python may stand
    for a number where a number is expected, and stays text where nothing is known about the expected type."""
    place: Place


@dataclass(frozen=True)
class ListNode:
    """A list of values."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True)
class MapNode:
    """A mapping of keys to values. The place of each value is the line of its key."""

    entries: Mapping[str, Node]
    place: Place
    repeated: tuple[tuple[str, Place, Place], ...] = ()
    """Keys that were given twice, with both places."""


Node = Scalar | ListNode | MapNode


def find_nearest(node: Node, path: Sequence[str | int]) -> tuple[Node, int]:
    """Returns the node at `path`, or its nearest ancestor in the document, and how many keys of `path` lead there."""
    for depth, key in enumerate(path):
        if isinstance(node, MapNode) and key in node.entries:
            node = node.entries[str(key)]
        elif isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
        else:
            return node, depth
    return node, len(path)


def convert_word_list(root: MapNode, key: str) -> MapNode:
    """Returns `root` with a list of words under `key` converted to a mapping of the words to empty text."""
    node = root.entries.get(key)
    if not isinstance(node, ListNode) or not all(isinstance(item, Scalar) for item in node.items):
        return root
    words = {str(item.value): Scalar("", "quoted", item.place) for item in node.items if isinstance(item, Scalar)}
    return replace(root, entries={**root.entries, key: MapNode(words, node.place)})


def to_plain_data(value: Any, path: str = "") -> Any:
    """Converts a Python value to what a YAML file can hold: dicts, lists, text, numbers, truth values and None.

    Args:
        value: The value; numpy numbers, tuples and paths are converted.
        path: The dotted key path of the value, for messages.

    Raises:
        ValueError: The value contains another type, a key that is not text, a NaN or an infinity.
    """
    where = f"{path}: " if path else ""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}got the key {key!r}, expected text")
        return {key: to_plain_data(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(item, f"{path}.{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise ValueError(f"{where}got {float(value)}, expected a finite number")
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    kind = type(value).__name__
    raise ValueError(f"{where}got a value of type {kind}, expected a mapping, list, text, number, truth value or None")


def read_mapping(value: Any, source: str) -> MapNode:
    """Returns the document in a mapping from Python, such as a flow's parameters.

    Raises:
        ConfigError: The value is not a mapping, or contains something that a YAML file can't hold.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: got a value of type {type(value).__name__}, expected a mapping of keys to values")
    try:
        node = make_node(to_plain_data(value), Place(source))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    assert isinstance(node, MapNode)
    return node


def make_node(value: Any, place: Place, text: Literal["python", "quoted"] = "python") -> Node:
    """Returns the node of plain data; `text` is the style of its texts."""
    if isinstance(value, dict):
        return MapNode({key: make_node(item, place, text) for key, item in value.items()}, place)
    if isinstance(value, list):
        return ListNode(tuple(make_node(item, place, text) for item in value), place)
    return Scalar(value, text if isinstance(value, str) else "python", place)


def parse_number(text: str) -> int | float | None:
    """Returns the number that `text` spells, or None if it spells none.

    Raises:
        ValueError: The number is not finite, or could also be meant as text or in another base.
    """
    if _DECIMAL.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > MOST_DIGITS:
            raise ValueError(f"expected a number of at most {MOST_DIGITS} digits")
        return int(text, 0) if _BASED.fullmatch(text) else int(text)
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(f'expected a number without a leading zero, or "{text}" in quotes for text')
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("expected a finite number")
    if _FLOAT.fullmatch(text):
        value = float(text)
        if abs(value) == float("inf"):
            raise ValueError("expected a number below 1.8e308")
        return value
    return None


def is_text(plain: str) -> bool:
    """Tells whether a plain key is text; `on` and `no` are, as in YAML 1.2."""
    if plain in TRUE_11 or plain in FALSE_11:
        return True
    try:
        return plain not in NULLS | TRUE | FALSE and parse_number(plain) is None
    except ValueError:
        return False


def is_null(node: Scalar) -> bool:
    """Tells whether `node` stands for null."""
    return node.value is None or (node.style == "plain" and node.value in NULLS)


def read_untyped(node: Scalar) -> Any:
    """Returns the value of `node` where the expected type is unknown (in `env_kwargs`).

    Raises:
        ValueError: The value can be read in two ways (`off`, `007`), is not finite, or refers to an unknown kind of
            secret.
    """
    text = node.value
    if isinstance(text, str) and any(kind not in KINDS for kind, _ in REFERENCE.findall(text)):
        raise ValueError("expected a reference of the kind ${env:NAME} or ${prefect:BLOCK}")
    if node.style != "plain":
        return text
    if text in NULLS:
        return None
    if text in TRUE or text in FALSE:
        return text in TRUE
    if text in TRUE_11 or text in FALSE_11:
        word = "true" if text in TRUE_11 else "false"
        raise ValueError(f'expected {word} for a truth value, or "{text}" in quotes for text')
    value = parse_number(text)
    return text if value is None else value


def _read_text(node: Scalar) -> str:
    if is_null(node) or isinstance(node.value, bool | float):
        raise ValueError
    text = str(node.value)
    if REFERENCE.search(text):
        raise ValueError(
            "expected plain text; secrets are resolved in env_kwargs and in the kwargs of wrappers and callbacks only"
        )
    return text


def _read_path(node: Scalar) -> Path:
    text = _read_text(node)
    if not text or "\0" in text:
        raise ValueError
    return Path(text)


def _read_number(node: Scalar) -> int | float:
    value = node.value
    if isinstance(value, str):
        if node.style == "quoted":
            raise ValueError("expected a number, without quotes" if _FLOAT.fullmatch(value) else "")
        value = parse_number(value)
    if value is None or isinstance(value, bool):
        raise ValueError
    return value  # type: ignore[no-any-return]


def _read_integer(node: Scalar) -> int:
    value = _read_number(node)
    if isinstance(value, float) and (not value.is_integer() or abs(value) > LARGEST_EXACT):
        raise ValueError
    return int(value)


def _read_float(node: Scalar) -> float:
    try:
        return float(_read_number(node))
    except OverflowError:
        raise ValueError("expected a number below 1.8e308") from None


def _read_switch(node: Scalar) -> bool:
    if isinstance(node.value, bool):
        return node.value
    if isinstance(node.value, str) and node.style != "quoted":
        if node.value in TRUE | TRUE_11:
            return True
        if node.value in FALSE | FALSE_11:
            return False
    raise ValueError


READERS: Mapping[type, Callable[[Scalar], Any]] = {
    bool: _read_switch,
    int: _read_integer,
    float: _read_float,
    numbers.Real: _read_number,
    str: _read_text,
    Path: _read_path,
}
"""Reads a scalar as each type; a `ValueError` carries what was expected, or no message if the type's name says it."""

EXPECTED: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    numbers.Real: "a number",
    str: "text",
    Path: "a path",
}
"""The name of each type in messages."""
