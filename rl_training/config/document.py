"""A settings source as a tree that remembers where each value stands and how it was spelt.

Text becomes a number, a truth value or stays text only when the settings type says what is wanted there
(`typed.py`): so `run_name: 007` keeps its zeros, `1e-4` is a number, and `off` is false only for a switch.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from rl_training.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and its line (from 1), or another source such as `--set seed`."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


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
    repeated: tuple[tuple[str, Place, Place], ...] = ()
    """Keys that were given twice, with both places."""


Node = Scalar | ListNode | MapNode


def nearest(node: Node, path: Sequence[str | int]) -> tuple[Node, int]:
    """Returns the value at `path`, or the nearest above it that was written, and how many keys led there."""
    for depth, key in enumerate(path):
        if isinstance(node, MapNode) and key in node.entries:
            node = node.entries[str(key)]
        elif isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
        else:
            return node, depth
    return node, len(path)


def plain_data(value: Any, path: str = "") -> Any:
    """Returns a Python value as what a YAML file can hold: dicts, lists, text, numbers, truth values and None.

    Args:
        value: The value; numpy numbers, tuples and paths are turned into plain ones.
        path: Its dotted key path, for messages.

    Raises:
        ValueError: It holds anything else, a key that is no text, a NaN or an infinity.
    """
    where = f"{path}: " if path else ""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}got the key {key!r}, expected text")
        return {key: plain_data(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{path}.{i}") for i, item in enumerate(value)]
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
    raise ValueError(f"{where}got a {kind}, expected a mapping, list, text, number, truth value or None")


def from_python(value: Any, source: str) -> MapNode:
    """Returns a mapping of a Python source (a flow's parameters, say) as a document.

    Raises:
        ConfigError: It is no mapping, or holds what a YAML file can't.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: got a {type(value).__name__}, expected a mapping of keys to values")
    try:
        node = _from_plain(plain_data(value), Place(source))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    assert isinstance(node, MapNode)
    return node


def _from_plain(value: Any, place: Place) -> Node:
    if isinstance(value, dict):
        return MapNode({key: _from_plain(item, place) for key, item in value.items()}, place)
    if isinstance(value, list):
        return ListNode(tuple(_from_plain(item, place) for item in value), place)
    return Scalar(value, "python", place)


def words_as_mapping(root: MapNode, key: str) -> MapNode:
    """Returns `root` with a list of words under `key` turned into a mapping of the words to empty text."""
    node = root.entries.get(key)
    if not isinstance(node, ListNode) or not all(isinstance(item, Scalar) for item in node.items):
        return root
    words = {str(item.value): Scalar("", "quoted", item.place) for item in node.items if isinstance(item, Scalar)}
    return replace(root, entries={**root.entries, key: MapNode(words, node.place)})
