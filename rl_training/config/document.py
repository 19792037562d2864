"""A settings source as a tree that remembers where each value stands and how it was spelt.

Text becomes a number, a truth value or stays text only when the settings type says what is wanted there
(`checking.py`): so `run_name: 007` keeps its zeros, `1e-4` is a number, and `off` is false only for a switch.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from rl_training.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and its line (from 1), or another source such as `--set seed`."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)


@dataclass(frozen=True)
class Scalar:
    """A single value."""

    value: Any
    """The text as spelt (`plain`, `quoted`), or a Python value (`python`)."""
    style: Literal["plain", "quoted", "python"]
    """Plain text may stand for a number, a truth value or nothing; quoted text is text. Text of a Python source may
    stand for a number where one is wanted, and is text where nothing is known of what is wanted."""
    place: Place


@dataclass(frozen=True)
class ListNode:
    """A list of values."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True)
class MapNode:
    """Keys and their values. Each value stands at the line of its key."""

    entries: Mapping[str, Node]
    place: Place


Node = Scalar | ListNode | MapNode


def place_of(node: Node, path: Sequence[str | int]) -> Place:
    """Returns the place of the value at `path`, or of the nearest value above it that was written."""
    return nearest(node, path)[0].place


def nearest(node: Node, path: Sequence[str | int]) -> tuple[Node, int]:
    """Returns the value at `path`, or the nearest above it, and how much of the path led there."""
    for depth, key in enumerate(path):
        if isinstance(node, MapNode) and key in node.entries:
            node = node.entries[str(key)]
        elif isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
        else:
            return node, depth
    return node, len(path)


def from_python(value: Any, source: str) -> Node:
    """Returns a Python value (of a flow's parameters, say) as a node.

    Raises:
        ConfigError: It holds something that is no mapping, list, text, number, truth value or None.
    """
    place = Place(source)
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            raise ConfigError(f"{source}: key {strange[0]!r} is a {type(strange[0]).__name__}, expected text")
        return MapNode({key: from_python(item, source) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return ListNode(tuple(from_python(item, source) for item in value), place)
    if value is None or isinstance(value, bool | str):
        return Scalar(value, "python", place)
    if isinstance(value, numbers.Integral):
        return Scalar(int(value), "python", place)
    if isinstance(value, numbers.Real):
        return Scalar(float(value), "python", place)
    if isinstance(value, PurePath):
        return Scalar(str(value), "python", place)
    raise ConfigError(
        f"{source}: got a {type(value).__name__}, expected a mapping, list, text, number, true, false or None"
    )


def words_as_mapping(root: MapNode, key: str) -> MapNode:
    """Returns `root` with a list of words under `key` turned into a mapping of the words to empty text."""
    node = root.entries.get(key)
    if not isinstance(node, ListNode) or not all(isinstance(item, Scalar) for item in node.items):
        return root
    words = {str(item.value): Scalar("", "quoted", item.place) for item in node.items if isinstance(item, Scalar)}
    return MapNode({**root.entries, key: MapNode(words, node.place)}, root.place)
