"""Edits of valid files, as short values that print as what they are: a failing one can be copied into a test.

An edit names places by numbers that are taken modulo what there is, so that every edit applies to every file.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import yaml
from hypothesis import strategies as st

Edit = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """An input: a valid file's name, the edits to the file, and whether the hashes over it are recomputed."""

    format: str
    edits: tuple[Edit, ...]
    sealed: bool


def _deep(kind: str, depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value} if kind == "dict" else [value]
    return value


VALUES: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 2**31, lambda: 2**53,
    lambda: 2**63, lambda: 2**64, lambda: 10**12, lambda: -(10**18), lambda: 10**300, lambda: 10**4000, lambda: 0.5,
    lambda: -0.0, lambda: 1e308, lambda: math.nan, lambda: math.inf, lambda: -math.inf, lambda: "", lambda: "\0",
    lambda: "text", lambda: "../../up", lambda: "/etc/hostname", lambda: "\ud800", lambda: "\u202e\u0000\n\r\u2028",
    lambda: "é" * 1000, lambda: "x" * 100_000, lambda: "NaN", lambda: "1e999", lambda: "${env:HOME}", lambda: "a.b:C",
    list, dict, lambda: [0], lambda: {"": 0}, lambda: [[]] * 100, lambda: [0] * 10_000, lambda: [10**9],
    lambda: {str(i): i for i in range(1000)}, lambda: _deep("list", 50), lambda: _deep("list", 500),
    lambda: _deep("dict", 300), lambda: {"type": "Box", "low": 0, "high": 1, "shape": [10**6] * 2, "dtype": "uint8"},
    lambda: {"type": "Discrete", "n": 10**12, "start": 0, "dtype": "int64"}, lambda: [2**63, -1],
]  # fmt: skip
"""What a value is replaced by."""

TENSORS: list[Callable[[], Any]] = [
    lambda: torch.zeros(0), lambda: torch.zeros(()), lambda: torch.zeros(3), lambda: torch.full((4,), math.nan),
    lambda: torch.zeros(1).expand(10**6, 10**6), lambda: torch.zeros(8).as_strided((5, 4), (1, 1)),
    lambda: torch.zeros(2, 3).T, lambda: torch.zeros(0, 10**9), lambda: torch.ones(3, dtype=torch.int64),
    lambda: torch.tensor([2**62, -1]), lambda: torch.zeros(4, dtype=torch.bool), lambda: torch.zeros(2, 2).to_sparse(),
    lambda: torch.zeros(3, dtype=torch.complex64), lambda: torch.zeros(3, dtype=torch.bfloat16),
    lambda: torch.zeros(10**5), lambda: torch.arange(6)[2:4], lambda: torch.nn.Parameter(torch.zeros(2)),
    lambda: torch.zeros(2, device="meta"), lambda: {"__ndarray__": torch.zeros(3, dtype=torch.float64)},
    lambda: {"__ndarray__": torch.zeros(8, dtype=torch.uint8), "dtype": "|S999999999", "shape": [1]},
    lambda: {"__ndarray__": torch.zeros(8, dtype=torch.uint8), "dtype": "|O", "shape": [1]},
    lambda: {"__ndarray__": torch.zeros(8, dtype=torch.uint8), "dtype": [["a", "<f4", [2]]], "shape": [-1]},
    lambda: (1, 2, 3), lambda: b"bytes", lambda: {1: 2, 3: {}}, lambda: {(1, 2): 3},
]  # fmt: skip
"""The same, beside `VALUES`, in files of tensors."""

NAMES = ["", "type", "n", "shape", "dtype", "steps", "__ndarray__", "__class__", "mean", "../x", "é", "a" * 300]
BYTES = [
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b'"',
    b"[",
    b"{",
    b"}",
    b"]",
    b",",
    b"- ",
    b"&a *a",
    b"!!",
    b"9" * 50,
]
OPCODES = [
    b"(", b"]", b"}", b")", b".", b"0", b"2", b"a", b"e", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"R", b"Q", b"N",
    b"h\0", b"q\0", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\xff", b"K\xff", b"J\xff\xff\xff\x7f", 
    b"\x8a\xff" + b"\x7f" * 255,
    b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 8, b"cos\nsystem\n",
    b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"\x80\x05",
    b"\x94", b"b", b"i", b"\x81", b"\x92", b"G\x7f\xf8" + b"\0" * 6,
]  # fmt: skip
"""Instructions of pickles, some with arguments that claim what is not there."""

_NUMBER = st.integers(0, 2**32)
ON_BYTES = st.one_of(
    st.tuples(st.just("flip"), _NUMBER, st.integers(1, 255)),
    st.tuples(st.just("cut"), _NUMBER),
    st.tuples(st.just("drop bytes"), _NUMBER, st.integers(1, 200)),
    st.tuples(st.just("insert"), _NUMBER, st.integers(0, len(BYTES) - 1), st.sampled_from([1, 2, 100, 5_000])),
    st.tuples(st.just("repeat bytes"), _NUMBER, st.integers(1, 200), st.sampled_from([1, 10, 200])),
    st.just(("mark",)),
    st.just(("crlf",)),
)
ON_VALUES = st.one_of(
    st.tuples(st.just("set"), _NUMBER, st.integers(0, len(VALUES) + len(TENSORS) - 1)),
    st.tuples(st.just("drop"), _NUMBER),
    st.tuples(st.just("add"), _NUMBER, st.integers(0, len(NAMES) - 1), st.integers(0, len(VALUES) - 1)),
    st.tuples(st.just("copy"), _NUMBER, _NUMBER),
    st.tuples(st.just("wrap"), _NUMBER, st.sampled_from([1, 2, 30, 100])),
    st.tuples(st.just("multiply"), _NUMBER, st.sampled_from([2, 1_000])),
)
ON_ARCHIVES = st.one_of(
    st.tuples(st.just("opcode"), _NUMBER, st.integers(0, len(OPCODES) - 1), st.booleans()),
    st.tuples(st.just("drop opcode"), _NUMBER),
    st.tuples(st.just("pickle flip"), _NUMBER, st.integers(1, 255)),
    st.tuples(st.just("itself"), _NUMBER),
    st.tuples(st.just("compress"), _NUMBER),
    st.tuples(st.just("twice"), _NUMBER),
    st.tuples(st.just("lose"), _NUMBER),
    st.tuples(st.just("swap"), _NUMBER, _NUMBER),
    st.tuples(st.just("lengthen"), _NUMBER, st.sampled_from([1, 4, 100_000])),
)


def on_bytes(data: bytes, edit: Edit) -> bytes:
    """Applies an edit of `ON_BYTES`."""
    kind, place = edit[0], edit[1] % (len(data) + 1) if len(edit) > 1 else 0
    if kind == "flip":
        return data[:place] + bytes([byte ^ edit[2] for byte in data[place : place + 1]]) + data[place + 1 :]
    if kind == "cut":
        return data[:place]
    if kind == "drop bytes":
        return data[:place] + data[place + edit[2] :]
    if kind == "insert":
        return data[:place] + BYTES[edit[2]] * edit[3] + data[place:]
    if kind == "repeat bytes":
        return data[:place] + data[place : place + edit[2]] * edit[3] + data[place:]
    return b"\xef\xbb\xbf" + data if kind == "mark" else data.replace(b"\n", b"\r\n")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns each container with each of its keys, outermost first."""
    found, waiting, seen = [], [value], set()
    while waiting and len(found) < 5_000:
        container = waiting.pop(0)
        if id(container) in seen or not isinstance(container, dict | list):
            continue
        seen.add(id(container))
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            found.append((container, key))
            waiting.append(container[key])
    return found


def on_values(value: Any, edit: Edit, *, tensors: bool) -> Any:
    """Applies an edit of `ON_VALUES` to a copy of a value."""
    root = [copy.deepcopy(value)]
    places, (kind, number, *rest) = _places(root), edit
    container, key = places[number % len(places)]
    if kind == "set":
        choices = VALUES + TENSORS if tensors else VALUES
        container[key] = choices[rest[0] % len(choices)]()
    elif kind == "drop":
        del container[key]
    elif kind == "add":
        target = container[key]
        if isinstance(target, dict):
            target[NAMES[rest[0]]] = VALUES[rest[1]]()
        elif isinstance(target, list):
            target.append(VALUES[rest[1]]())
    elif kind == "copy":
        source, name = places[rest[0] % len(places)]
        container[key] = copy.deepcopy(source[name])
    elif kind == "wrap":
        for _ in range(rest[0]):
            container[key] = [container[key]]
    elif isinstance(container[key], str | list):
        container[key] = container[key] * min(rest[0], 200_000 // (len(container[key]) + 1) + 1)
    return root[0] if root else None


def on_archive(data: bytes, edit: Edit) -> bytes:
    """Applies an edit of `ON_ARCHIVES` to a file that `torch.save` wrote; one that is broken stays as it is."""
    try:
        source = zipfile.ZipFile(io.BytesIO(data))
        members = [(item.filename, source.read(item.filename)) for item in source.infolist()]
        at = next(i for i, (name, _) in enumerate(members) if name.endswith("data.pkl"))
        kind, number, *rest = edit
        compressed: set[int] = set()
        if kind in ("opcode", "drop opcode", "pickle flip", "itself"):
            members[at] = (members[at][0], _on_pickle(members[at][1], edit))
        i = number % len(members)
        if kind == "compress":
            compressed.add(i)
        elif kind == "twice":
            members.append(members[i])
        elif kind == "lose":
            del members[i]
        elif kind == "swap":
            j = rest[0] % len(members)
            members[i], members[j] = (members[i][0], members[j][1]), (members[j][0], members[i][1])
        elif kind == "lengthen":
            members[i] = (members[i][0], members[i][1] + bytes(rest[0]))
    except (zipfile.BadZipFile, ValueError, StopIteration, OSError, EOFError, NotImplementedError):
        return data
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for i, (name, content) in enumerate(members):
            method = zipfile.ZIP_DEFLATED if i in compressed else zipfile.ZIP_STORED
            with warnings.catch_warnings(action="ignore"):  # of a name that is there twice
                archive.writestr(zipfile.ZipInfo(name), content, method)
    return target.getvalue()


def _on_pickle(program: bytes, edit: Edit) -> bytes:
    kind, number, *rest = edit
    starts = [position for _, _, position in pickletools.genops(program)]
    i = number % len(starts)
    start, end = starts[i], starts[i + 1] if i + 1 < len(starts) else len(program)
    if kind == "drop opcode":
        return program[:start] + program[end:]
    if kind == "pickle flip":
        return on_bytes(program, ("flip", number, rest[0]))
    if kind == "itself":  # the first list or dict is remembered, and put into itself
        return program.replace(b"}q\x00", b"}q\x00X\x01\x00\x00\x00ah\x00s", 1)
    return program[:start] + OPCODES[rest[0]] + program[end if rest[1] else start :]


def to_tensors(value: Any) -> bytes | None:
    """Returns a state as `torch.save` writes it; None if torch does not."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except (RuntimeError, RecursionError, TypeError, NotImplementedError, pickle.PicklingError, ValueError):
        return None
    return file.getvalue()


def to_json(value: Any) -> bytes:
    """Returns a value as JSON, halves of characters and NaN too."""
    try:
        return json.dumps(value, indent=2).encode()
    except (ValueError, TypeError):  # a number of thousands of digits
        return json.dumps(value, default=str).encode() if not isinstance(value, int) else b"1" * 5_000


def to_yaml(value: Any) -> bytes:
    """Returns a value as YAML, with anchors for values that occur twice."""
    try:
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (RecursionError, ValueError, yaml.YAMLError):
        return b"[" * 10_000
