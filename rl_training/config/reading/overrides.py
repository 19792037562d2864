"""Overrides: `--set a.b=1e-3` and the mappings of flows, merged into a document and checked as a part of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_training.config.document import MapNode, Node, Place, from_python
from rl_training.config.reading.yaml_text import from_json, read_value
from rl_training.errors import ConfigError, one_line

Overrides = Mapping[str, Any] | Sequence[str] | MapNode
"""Nested mappings, dotted keys or both; texts such as `a.b=1e-3`; or what was read of these."""

SOURCE = "overrides"


def read_overrides(overrides: Overrides) -> MapNode:
    """Returns overrides as one document.

    Raises:
        ConfigError: One can't be read, or a key is given twice.
    """
    if isinstance(overrides, MapNode):
        return overrides
    if isinstance(overrides, str):
        overrides = _json_mapping(overrides)
    if isinstance(overrides, Mapping):
        given = list(from_python(overrides, SOURCE).entries.items())
    else:
        given = [_assignment(text) for text in overrides]
    root = MapNode({}, Place(SOURCE))
    for key, item in given:
        root = _combine(root, _nested(key.split("."), item))
    return root


def laid_over(stored: Overrides, given: Overrides) -> MapNode:
    """Returns two sets of overrides as one; what both have is as given.

    Raises:
        ConfigError: One can't be read, or a key is given twice.
    """
    return merge(read_overrides(stored), read_overrides(given))


def merge(base: MapNode, over: MapNode) -> MapNode:
    """Returns `base` with the values of `over` in place of its own; sections are merged key by key."""
    entries = dict(base.entries)
    for key, item in over.entries.items():
        old, new = from_json(entries.get(key, item)), from_json(item)
        if key in entries and isinstance(old, MapNode) and isinstance(new, MapNode):
            item = merge(old, new)
        entries[key] = item
    return replace(base, entries=entries, repeated=base.repeated + over.repeated)


def _json_mapping(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f'{SOURCE}: got a text, expected a mapping such as {{"learning_rate": 0.001}}')
    return value


def _assignment(text: str) -> tuple[str, Node]:
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not all(part.strip() for part in key.split(".")):
        beginning = re.findall(r"^[\w.-]*", key)[0]  # no more of it: it may be a secret
        raise ConfigError(f"--set {one_line(beginning)}: expected key=value, such as --set evaluation.every=5000")
    return key, read_value(value, f"--set {one_line(key)}")


def _nested(keys: list[str], node: Node) -> MapNode:
    for key in reversed(keys):
        node = MapNode({key: node}, node.place)
    assert isinstance(node, MapNode)
    return node


def _combine(first: MapNode, second: MapNode, path: str = "") -> MapNode:
    """Returns both together, refusing what both give."""
    entries = dict(first.entries)
    for key, item in second.entries.items():
        old, here = entries.get(key), f"{path}{key}"
        if old is None:
            entries[key] = item
        elif isinstance(old, MapNode) and isinstance(item, MapNode):
            entries[key] = _combine(old, item, f"{here}.")
        else:
            raise ConfigError(f"{item.place}: {one_line(here)}: given twice; keep one")
    return replace(first, entries=entries, repeated=first.repeated + second.repeated)
