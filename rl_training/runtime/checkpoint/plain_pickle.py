"""Reads the pickles in files of `torch.save` that anyone may have written.

A pickle is a small program for a stack machine. This machine knows only the instructions that a plain state needs: it
makes numbers, strings, lists, tuples, dicts and tensors, and can't import or call anything. Every object is paid for
from a budget that depends on the size of the file, so that a small file can't fill the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

STORED = {
    "torch BoolStorage": torch.bool,
    "torch ByteStorage": torch.uint8,
    "torch CharStorage": torch.int8,
    "torch ShortStorage": torch.int16,
    "torch IntStorage": torch.int32,
    "torch LongStorage": torch.int64,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch ComplexFloatStorage": torch.complex64,
    "torch ComplexDoubleStorage": torch.complex128,
    "torch uint16": torch.uint16,
    "torch uint32": torch.uint32,
    "torch uint64": torch.uint64,
}
"""The dtype of each name: that of a storage, or of a tensor whose storage is untyped bytes."""

BYTES = "torch.storage UntypedStorage"
TENSOR = "torch._utils _rebuild_tensor_v2"
TENSOR_OF_BYTES = "torch._utils _rebuild_tensor_v3"
HOOKS = "collections OrderedDict"
"""Each tensor has an empty one, in which torch would keep hooks."""

MAX_DIMENSION = 2**40
"""The largest dimension of a tensor, even of an empty tensor."""

# The cost of objects in bytes, rounded up: their own memory and their place in a container. A tensor costs about 1,000
# bytes more while it is made, for its arguments.
_NUMBER, _TEXT, _CONTAINER, _ITEM, _TENSOR = 40, 120, 120, 110, 500


class NotPlain(ValueError):
    """The pickle is damaged, or does something that no pickle of a plain state does."""


@dataclass(frozen=True)
class Global:
    """The name of a function or type of torch; it is only compared, never looked up."""

    name: str


class Storage(NamedTuple):
    """A reference to the numbers of a tensor, which are in a file of their own."""

    kind: str
    """A key of `STORED`, or `BYTES`."""
    key: str
    """The name of the file."""
    numbers: int
    """The count of numbers."""


LoadStorage = Callable[[Storage, torch.dtype], torch.Tensor]
"""A function that returns the numbers of a storage as a tensor [numbers] of a dtype."""

_KNOWN = {name: Global(name) for name in (*STORED, BYTES, TENSOR, TENSOR_OF_BYTES, HOOKS)}
_NO_HOOKS = object()


def read_pickle(data: bytes, load_storage: LoadStorage, budget: int) -> Any:
    """Returns the value that a pickle of protocol 2 describes.

    Args:
        data: The pickle.
        load_storage: Reads the numbers of tensors.
        budget: The bytes of memory that the value may take, without the numbers of tensors.

    Raises:
        NotPlain: It is not the pickle of a plain state, or describes more than the budget allows.
        IndexError: It takes a value from an empty stack.
        UnicodeDecodeError: A string in it is not UTF-8.
    """
    return _Machine(data, load_storage, budget).run()


class _Machine:
    def __init__(self, data: bytes, load_storage: LoadStorage, budget: int) -> None:
        self._data, self._position = data, 0
        self._load_storage, self._budget = load_storage, budget
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stack below each mark
        self._memo: dict[int, str | Global] = {}

    def run(self) -> Any:
        if self._take(2) != b"\x80\x02":
            raise NotPlain("its pickle does not use protocol 2")
        while (code := self._take(1)) != b".":
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise NotPlain(f"its pickle has the unexpected instruction {code!r}")
            operation(self)
        if len(self._stack) != 1 or self._outer or self._position != len(self._data):
            raise NotPlain("its pickle ends too early, or bytes follow its end")
        return self._stack[0]

    def _take(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._data):
            raise NotPlain("its pickle is truncated")
        return self._data[start : self._position]

    def _line(self) -> str:
        end = self._data.find(b"\n", self._position, self._position + 100)
        if end < 0:
            raise NotPlain("a name in its pickle has no end")
        text = self._data[self._position : end].decode("ascii")
        self._position = end + 1
        return text

    def _push(self, value: Any, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            raise NotPlain("it describes more than a file of its size holds")
        self._stack.append(value)

    # Numbers and strings.

    def _float(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0], _NUMBER)

    def _int(self) -> None:
        self._push(int.from_bytes(self._take(4), "little", signed=True), _NUMBER)

    def _byte(self) -> None:
        self._push(self._take(1)[0], _NUMBER)

    def _two_bytes(self) -> None:
        self._push(int.from_bytes(self._take(2), "little"), _NUMBER)

    def _long(self) -> None:
        self._push(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True), 2 * _NUMBER)

    def _text(self) -> None:
        data = self._take(int.from_bytes(self._take(4), "little"))
        self._push(data.decode(), _TEXT + 4 * len(data) * (not data.isascii()))

    # Containers. None occurs twice or inside itself: that would need the memo.

    def _mark(self) -> None:
        self._push(None, _CONTAINER)
        self._stack.pop()
        self._outer.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _tuple(self) -> None:
        items = self._since_mark()
        self._push(tuple(items), _CONTAINER + 8 * len(items))

    def _tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise NotPlain("its pickle takes values from an empty stack")
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push(items, _CONTAINER)

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise NotPlain("its pickle appends to something other than a list")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise NotPlain("its pickle sets items of something other than a dict")
        self._budget -= _ITEM * len(items) // 2
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int, bool) or key in target:
                raise NotPlain("a key of a dict is duplicate, or not a string, integer or boolean")
            target[key] = value

    def _set_one(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    # The memo, which holds strings and names only.

    def _put(self, index: int) -> None:
        value = self._stack[-1]
        if type(value) in (str, Global):
            self._budget -= _ITEM
            self._memo[index] = value

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise NotPlain("an object in it occurs twice or inside itself")
        self._push(self._memo[index], 8)

    # Tensors.

    def _global(self) -> None:
        name = f"{self._line()} {self._line()}"
        if name not in _KNOWN:
            raise NotPlain(f"it names {name!r}")
        self._push(_KNOWN[name], 8)

    def _storage(self) -> None:
        match self._stack.pop():
            case ("storage", Global(kind), str(key), str(), int(count)) if kind in STORED or kind == BYTES:
                self._push(Storage(kind, key, count), _CONTAINER)
            case _:
                raise NotPlain("the storage of a tensor is malformed")

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        match function, arguments:
            case Global(name), () if name == HOOKS:
                self._push(_NO_HOOKS, 8)
            case Global(name), (Storage() as storage, offset, size, stride, False, hooks) if (
                name == TENSOR and hooks is _NO_HOOKS and storage.kind in STORED
            ):
                self._push(self._tensor(storage, STORED[storage.kind], offset, size, stride), _TENSOR)
            case Global(name), (Storage() as storage, offset, size, stride, False, hooks, Global(dtype)) if (
                name == TENSOR_OF_BYTES and hooks is _NO_HOOKS and storage.kind == BYTES and dtype in STORED
            ):
                self._push(self._tensor(storage, STORED[dtype], offset, size, stride), _TENSOR)
            case _:
                raise NotPlain("it calls a function, or a tensor in it is malformed")

    def _tensor(self, storage: Storage, dtype: torch.dtype, offset: Any, size: Any, stride: Any) -> torch.Tensor:
        for numbers in (size, stride, (offset,)):
            if type(numbers) is not tuple or not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in numbers):
                raise NotPlain("the shape of a tensor is malformed")
        if len(size) != len(stride) or len(size) > 32 or not _is_contiguous(size, stride):
            raise NotPlain(f"a tensor of shape {size} has the strides {stride}: its numbers are not contiguous")
        count = prod(size)
        numbers = self._load_storage(storage, dtype)
        if offset + count > len(numbers):
            raise NotPlain(f"a tensor of shape {size} at offset {offset:,} exceeds its {len(numbers):,} numbers")
        return numbers[offset : offset + count].view(size)


def _is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Returns whether numbers lie in the order of their indices without gaps."""
    expected = 1
    for side, step in zip(reversed(size), reversed(stride), strict=True):
        if side > 1 and step != expected:
            return 0 in size
        expected *= side
    return True


_OPERATIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"N": lambda machine: machine._push(None, 8),
    b"\x88": lambda machine: machine._push(True, 8),
    b"\x89": lambda machine: machine._push(False, 8),
    b"G": _Machine._float,
    b"J": _Machine._int,
    b"K": _Machine._byte,
    b"M": _Machine._two_bytes,
    b"\x8a": _Machine._long,
    b"X": _Machine._text,
    b"]": lambda machine: machine._push([], _CONTAINER),
    b"}": lambda machine: machine._push({}, _CONTAINER),
    b")": lambda machine: machine._push((), 8),
    b"(": _Machine._mark,
    b"t": _Machine._tuple,
    b"\x85": lambda machine: machine._tuple_of(1),
    b"\x86": lambda machine: machine._tuple_of(2),
    b"\x87": lambda machine: machine._tuple_of(3),
    b"a": lambda machine: machine._append([machine._stack.pop()]),
    b"e": lambda machine: machine._append(machine._since_mark()),
    b"s": _Machine._set_one,
    b"u": lambda machine: machine._set(machine._since_mark()),
    b"q": lambda machine: machine._put(machine._take(1)[0]),
    b"r": lambda machine: machine._put(int.from_bytes(machine._take(4), "little")),
    b"h": lambda machine: machine._get(machine._take(1)[0]),
    b"j": lambda machine: machine._get(int.from_bytes(machine._take(4), "little")),
    b"c": _Machine._global,
    b"Q": _Machine._storage,
    b"R": _Machine._call,
}
"""The instructions by opcode; `pickletools` describes them."""
