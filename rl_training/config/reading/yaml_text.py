"""Settings files in and out: YAML text to a document that knows its lines, and settings to YAML text.

PyYAML scans and composes; nothing is constructed by tag, so that no file can run code.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
from dataclasses import replace
from typing import Any

import yaml

from rl_training.config.document import ListNode, MapNode, Node, Place, Scalar
from rl_training.config.reading import scalars
from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError
from rl_training.security.secrets import redact

MAX_VALUES = 100_000
"""A file that expands (by its anchors) to more values than this is refused."""

MAX_MARKS = 40_000
"""Lines, brackets, commas, colons and the like in a text: what the time to read it grows with."""

NOT_PART_OF_A_RUN = ("run_dir", "run_name", "tags", "experiment", "job")
"""Settings that say where a run is kept and what it is called, and not what it computes."""

_PLAIN = "plain"
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS_AND_SWITCHES = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null"))
_STRUCTURE = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class _Loader(yaml.SafeLoader):
    """Composes nodes, telling plain scalars from quoted ones and resolving neither."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


class _Dumper(yaml.SafeDumper):
    """Quotes every text that any reader of YAML, 1.1 or ours, could take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_PLAIN, re.compile(rf"{scalars.FLOAT_PATTERN}|[-+]?0_?[0-9_]+"), list("-+.0123456789"))


def decode(data: bytes, source: str) -> str:
    """Returns the text of a settings file: UTF-8, with or without a byte order mark.

    Raises:
        ConfigError: It is no UTF-8.
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


def read_text(text: str, source: str) -> MapNode:
    """Returns the document in `text`.

    Raises:
        ConfigError: Its syntax is wrong, it is empty, or no mapping.
    """
    root = _compose(text, source)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _PLAIN and root.value in scalars.NULLS):
        raise ConfigError(f"{source}: empty config; expected a mapping with at least algo, env_id and total_timesteps")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(f"{_at(source, root.start_mark)}: got {kind} on top, expected a mapping of keys to values")
    node = _Converter(source).convert(root)
    assert isinstance(node, MapNode)
    return node


def read_value(text: str, source: str) -> Node:
    """Returns one value of a command line: a list, mapping or quoted text in YAML's flow style, or plain text.

    Raises:
        ConfigError: Its syntax is wrong.
    """
    text = text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return Scalar(text, "plain", Place(source))
    root = _compose(text, source)
    assert root is not None
    return _Converter(source, lines=False).convert(root)


def from_json(node: Node) -> Node:
    """Returns the mapping or list in a JSON text (one that was encoded twice on its way), or `node` itself."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or node.value.lstrip()[:1] not in ("{", "["):
        return node
    try:
        json.loads(node.value)
    except (ValueError, RecursionError):
        return node
    inside = read_value(node.value, node.place.source)
    return node if isinstance(inside, Scalar) else replace(inside, place=node.place)


def _compose(text: str, source: str) -> yaml.Node | None:
    if (marks := sum(map(text.count, "[]{},:-&*!|>\n"))) > MAX_MARKS:
        raise ConfigError(f"{source}: {marks:,} lines and punctuation marks; at most {MAX_MARKS:,} are read")
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{_at(source, mark) if mark else source}: {_syntax_problem(error, text)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise ConfigError(f"{source}:{line}:{column}: the character U+{error.character:04X} is not allowed") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """Says what PyYAML found, without repeating the value: it may be a secret."""
    problem = error.problem or "not valid YAML"
    if "undefined alias" in problem:
        return "no anchor of this name; a text that begins with * must be quoted"
    if "tag handle" in problem:
        return "an unknown kind of tag; a text that begins with ! must be quoted"
    mark = error.problem_mark
    if mark is not None:
        lines = text.split("\n")
        line = lines[mark.line] if mark.line < len(lines) else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return "a tab in the indentation; YAML wants spaces"
    return f"{error.context}: {problem}" if error.context else problem


def _at(source: str, mark: Any) -> str:
    return f"{source}:{mark.line + 1}:{mark.column + 1}"


class _Converter:
    """Turns PyYAML's nodes into ours, and refuses what settings have no use for."""

    def __init__(self, source: str, lines: bool = True) -> None:
        self.source = source
        self.lines = lines
        self.open: list[yaml.Node] = []
        self.count = 0

    def convert(self, root: yaml.Node) -> Node:
        return self._node(root, self._place(root))

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.source, node.start_mark.line + 1) if self.lines else Place(self.source)

    def _node(self, node: yaml.Node, place: Place) -> Node:
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(f"{self.source}: more than {MAX_VALUES:,} values; are anchors nested?")
        if node in self.open:
            raise ConfigError(f"{self._exactly(node)}: an anchor that contains itself")
        self._check_tag(node)
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, "quoted" if node.tag == _TEXT else "plain", place)
        self.open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return ListNode(tuple(self._node(item, self._place(item)) for item in node.value), place)
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, place)
        finally:
            self.open.pop()

    def _check_tag(self, node: yaml.Node) -> None:
        if node.tag in (_PLAIN, _TEXT, *_STRUCTURE, *_NUMBERS_AND_SWITCHES):
            return
        name = node.tag.replace("tag:yaml.org,2002:", "!!")
        shown = f"tag {name}" if name.startswith("!!") else "a tag of one's own"
        raise ConfigError(f"{self._exactly(node)}: {shown} is not allowed; a text that begins with ! must be quoted")

    def _mapping(self, node: yaml.MappingNode, place: Place) -> MapNode:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        repeated: list[tuple[str, Place, Place]] = []
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merged = {**self._merged(value_node), **merged}
                continue
            key, key_place = self._key(key_node), self._place(key_node)
            if key in entries:
                repeated.append((key, entries[key].place, key_place))
            entries[key] = self._node(value_node, key_place)
        return MapNode({**merged, **entries}, place, tuple(repeated))

    def _merged(self, node: yaml.Node) -> dict[str, Node]:
        """Returns the entries that a merge key (`<<`) brings in; the earlier of several mappings wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Node] = {}
        for source in sources:
            converted = self._node(source, self._place(source))
            if not isinstance(converted, MapNode):
                raise ConfigError(f"{self._exactly(source)}: << wants a mapping (an alias such as *defaults)")
            merged = {**converted.entries, **merged}
        return merged

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(f"{self._exactly(node)}: a key that is a list or mapping; expected text")
        self._check_tag(node)
        if node.tag != _TEXT and not _is_text(node.value):
            shown = node.value or "(nothing)"
            raise ConfigError(f'{self._exactly(node)}: key {shown} is not text; write it in quotes: "{node.value}"')
        return str(node.value)

    def _exactly(self, node: yaml.Node) -> str:
        return _at(self.source, node.start_mark) if self.lines else self.source


def _is_text(plain: str) -> bool:
    """Tells whether a plain key is text; `on` and `no` are, as in YAML 1.2."""
    if plain in scalars.TRUE_11 or plain in scalars.FALSE_11:
        return True
    try:
        return plain not in scalars.NULLS | scalars.TRUE | scalars.FALSE and scalars.number(plain) is None
    except ValueError:
        return False


def dump_config(config: TrainConfig, *, redacted: bool = True) -> str:
    """Returns the resolved settings as YAML, which `load_config` reads back to equal settings.

    Args:
        config: The settings.
        redacted: Whether secrets are hidden (references to secrets are kept). What is written anywhere must be.
    """
    data = config.model_dump(mode="json")
    if redacted:
        data = redact(data)
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def compact_config(config: TrainConfig) -> str:
    """Returns the resolved settings for people, secrets hidden: single values in rows, then a line for each section."""
    data = redact(config.model_dump(mode="json"))
    sections = {key: value for key, value in data.items() if isinstance(value, dict) and value}
    single = {key: value for key, value in data.items() if key not in sections}
    rows = _on_one_line(single, width=100).removeprefix("{").removesuffix("}").splitlines()
    return "\n".join([*map(str.strip, rows), *(f"{key}: {_on_one_line(value)}" for key, value in sections.items())])


def _on_one_line(data: Any, width: float = math.inf) -> str:
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=width
    )
    return text.strip()


def config_hash(config: TrainConfig) -> str:
    """Returns the sha256 of the settings that define what a run computes: all but `NOT_PART_OF_A_RUN`.

    Secrets don't enter it, so that it gives nothing away and stays the same when a token is renewed.
    """
    data = config.model_dump(mode="json", exclude=set(NOT_PART_OF_A_RUN))
    canonical = json.dumps(redact(data, references=True), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
