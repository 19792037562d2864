"""Parses YAML text and overrides (`--set a.b=1e-3`, and the mappings of flows) into documents.

PyYAML scans and composes, and nothing is constructed from a tag, so no file can run code.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from rl_training.config.document import NULLS, ListNode, MapNode, Node, Place, Scalar, is_text, read_mapping
from rl_training.errors import ConfigError, one_line

Overrides = Mapping[str, Any] | Sequence[str] | MapNode
"""Nested mappings, dotted keys or both; texts such as `a.b=1e-3`; or the document that was read from these."""

OVERRIDES = "overrides"
"""The name of overrides from Python as a source, in messages."""

MAX_VALUES = 100_000
"""A file whose anchors expand it to more values than this is refused."""

MAX_MARKS = 40_000
"""Most lines and punctuation marks in a text; the time to parse a text grows with their number."""

_PLAIN = "plain"
_TEXT = "tag:yaml.org,2002:str"
_CORE_TAGS = (_PLAIN, _TEXT, *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "int", "float", "bool", "null")))


class _Loader(yaml.SafeLoader):
    """Composes nodes and distinguishes plain from quoted scalars, but resolves neither."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def decode(data: bytes, source: str) -> str:
    """Returns the text of a settings file: UTF-8, with or without a byte order mark.

    Raises:
        ConfigError: The file is not UTF-8.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise ConfigError(
            f"{source}:{line}:{column}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def read_yaml(text: str, source: str) -> MapNode:
    """Returns the document in a YAML text.

    Raises:
        ConfigError: The text has a syntax error, is empty, or is not a mapping.
    """
    root = _compose(text, source)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _PLAIN and root.value in NULLS):
        raise ConfigError(f"{source}: empty config; expected a mapping with at least algo, env_id and total_timesteps")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(f"{_locate(source, root)}: got {kind} at the top level, expected a mapping of keys to values")
    node = _Converter(source).convert(root)
    assert isinstance(node, MapNode)
    return node


def read_value(text: str, source: str) -> Node:
    """Returns one value of a command line: a list, mapping or quoted text in YAML's flow style, or plain text.

    Raises:
        ConfigError: The text has a syntax error.
    """
    text = text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return Scalar(text, "plain", Place(source))
    root = _compose(text, source)
    assert root is not None
    return _Converter(source, lines=False).convert(root)


def read_overrides(overrides: Overrides) -> MapNode:
    """Returns overrides as one document.

    Raises:
        ConfigError: An override can't be read, or a key is given twice.
    """
    if isinstance(overrides, MapNode):
        return overrides
    if isinstance(overrides, str):
        overrides = _parse_json_mapping(overrides)
    if isinstance(overrides, Mapping):
        return expand_dotted(read_mapping(overrides, OVERRIDES).entries.items())
    return expand_dotted(map(_parse_assignment, overrides))


def expand_dotted(entries: Iterable[tuple[str, Node]]) -> MapNode:
    """Returns keys and values as one document, nested keys for dotted ones; raises ConfigError if two are equal."""
    root = MapNode({}, Place(OVERRIDES))
    for key, item in entries:
        for name in reversed(key.split(".")):
            item = MapNode({name: item}, item.place)
        assert isinstance(item, MapNode)
        root = _combine(root, item)
    return root


def merge_overrides(first: Overrides, second: Overrides) -> MapNode:
    """Returns two sets of overrides as one; values of the second replace those of the first.

    Raises:
        ConfigError: An override can't be read, or a key is given twice in one set.
    """
    return merge(read_overrides(first), read_overrides(second))


def merge(base: MapNode, over: MapNode) -> MapNode:
    """Returns `base` with its values replaced by those of `over`; sections are merged key by key."""
    entries = dict(base.entries)
    for key, item in over.entries.items():
        old, new = expand_json(entries.get(key, item)), expand_json(item)
        if key in entries and isinstance(old, MapNode) and isinstance(new, MapNode):
            item = merge(old, new)
        entries[key] = item
    return replace(base, entries=entries, repeated=base.repeated + over.repeated)


def expand_json(node: Node) -> Node:
    """Returns the mapping or list in a JSON text (a value that was encoded twice), or `node` itself."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or node.value.lstrip()[:1] not in ("{", "["):
        return node
    try:
        json.loads(node.value)
    except (ValueError, RecursionError):
        return node
    inside = read_value(node.value, node.place.source)
    return node if isinstance(inside, Scalar) else replace(inside, place=node.place)


def _parse_json_mapping(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f'{OVERRIDES}: got a text, expected a mapping such as {{"learning_rate": 0.001}}')
    return value


def _parse_assignment(text: str) -> tuple[str, Node]:
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not all(part.strip() for part in key.split(".")):
        beginning = re.findall(r"^[\w.-]*", key)[0]  # the rest is not repeated, because it may be a secret
        raise ConfigError(f"--set {one_line(beginning)}: expected key=value, such as --set evaluation.every=5000")
    return key, read_value(value, f"--set {one_line(key)}")


def _combine(first: MapNode, second: MapNode, path: str = "") -> MapNode:
    """Returns the entries of both mappings, and refuses a key that both give."""
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


def _compose(text: str, source: str) -> yaml.Node | None:
    if (marks := sum(map(text.count, "[]{},:-&*!|>\n"))) > MAX_MARKS:
        raise ConfigError(f"{source}: got {marks:,} lines and punctuation marks, expected at most {MAX_MARKS:,}")
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(describe_syntax_error(error, text, source)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise ConfigError(f"{source}:{line}:{column}: the character U+{error.character:04X} is not allowed") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def describe_syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> str:
    """Returns where a syntax error is and what it is, without repeating the value, which may be a secret."""
    mark = error.problem_mark or error.context_mark
    where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    return f"{where}: {_explain_syntax_error(error, text)}"


def _explain_syntax_error(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = error.problem or "not valid YAML"
    if "undefined alias" in problem:
        return "no anchor has this name; quote a text that begins with *"
    if "tag handle" in problem:
        return "unknown kind of tag; quote a text that begins with !"
    if (mark := error.problem_mark) is not None:
        lines = text.split("\n")
        line = lines[mark.line] if mark.line < len(lines) else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return "got a tab in the indentation, expected spaces"
    return f"{error.context}: {problem}" if error.context else problem


def _locate(source: str, node: yaml.Node) -> str:
    return f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


class _Converter:
    """Converts PyYAML's nodes to ours, and refuses what settings have no use for."""

    def __init__(self, source: str, lines: bool = True) -> None:
        self._source = source
        self._lines = lines
        self._open: list[yaml.Node] = []
        self._count = 0

    def convert(self, root: yaml.Node) -> Node:
        return self._convert(root, self._place(root))

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1) if self._lines else Place(self._source)

    def _convert(self, node: yaml.Node, place: Place) -> Node:
        self._count += 1
        if self._count > MAX_VALUES:
            raise ConfigError(f"{self._source}: more than {MAX_VALUES:,} values; check for nested anchors")
        if node in self._open:
            raise ConfigError(f"{self._locate(node)}: an anchor that contains itself")
        self._check_tag(node)
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, "quoted" if node.tag == _TEXT else "plain", place)
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return ListNode(tuple(self._convert(item, self._place(item)) for item in node.value), place)
            assert isinstance(node, yaml.MappingNode)
            return self._convert_mapping(node, place)
        finally:
            self._open.pop()

    def _check_tag(self, node: yaml.Node) -> None:
        if node.tag not in _CORE_TAGS:
            name = node.tag.replace("tag:yaml.org,2002:", "!!")
            tag = f"tag {name}" if name.startswith("!!") else "a custom tag"
            raise ConfigError(f"{self._locate(node)}: {tag} is not allowed; quote a text that begins with !")

    def _convert_mapping(self, node: yaml.MappingNode, place: Place) -> MapNode:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        repeated: list[tuple[str, Place, Place]] = []
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merged = {**self._convert_merge_key(value_node), **merged}
                continue
            key, key_place = self._convert_key(key_node), self._place(key_node)
            if key in entries:
                repeated.append((key, entries[key].place, key_place))
            entries[key] = self._convert(value_node, key_place)
        return MapNode({**merged, **entries}, place, tuple(repeated))

    def _convert_merge_key(self, node: yaml.Node) -> dict[str, Node]:
        """Returns the entries of a merge key (`<<`); of several mappings, the earlier takes precedence."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Node] = {}
        for source in sources:
            converted = self._convert(source, self._place(source))
            if not isinstance(converted, MapNode):
                raise ConfigError(f"{self._locate(source)}: << expects a mapping (an alias such as *defaults)")
            merged = {**converted.entries, **merged}
        return merged

    def _convert_key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(f"{self._locate(node)}: got a list or mapping as a key, expected text")
        self._check_tag(node)
        if node.tag != _TEXT and not is_text(node.value):
            key = node.value or "(nothing)"
            raise ConfigError(f'{self._locate(node)}: key {key} is not text; write it in quotes: "{node.value}"')
        return str(node.value)

    def _locate(self, node: yaml.Node) -> str:
        return _locate(self._source, node) if self._lines else self._source
