"""Reads files of `torch.save` that anyone may have written.

Such a file is an uncompressed zip archive: `data.pkl`, which describes a plain state (`plain_pickle.py`), and one file
with the numbers of each tensor. `torch.load(weights_only=True)` runs no code either, but it allocates whatever a file
claims: compressed files, tensors larger than their numbers, lists that hold themselves. This reader compares every size
with the size of the file before it allocates.
"""

from __future__ import annotations

import os
import struct
from io import BufferedReader
from typing import Any, NamedTuple

import torch

from rl_training.runtime.checkpoint.plain_pickle import BYTES, NotPlain, Storage, read_pickle

MAX_FILES = 250_000
"""The largest number of files in an archive."""
ROOM = 40 * 2**20
"""The bytes of memory that a state may take beyond twice the size of its file."""
SHARED = 16 * 2**20
"""The bytes of tensors that may share their numbers with other tensors."""

_END, _END_64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")


class _Member(NamedTuple):
    """One file of an archive."""

    header: int
    """The offset of the file's own header."""
    size: int


def read_tensor_file(file: BufferedReader) -> Any:
    """Returns the state that `torch.save` was given: tensors, numbers, strings, and lists, tuples and dicts of them.

    Accepts only files in which no object occurs twice and the numbers of each tensor are contiguous.

    Args:
        file: The file, open for reading at any position.

    Raises:
        NotPlain: The file is of another format, or claims more than it holds.
        OSError: The file can't be read.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        archive = _Archive(file, size)
        order = archive.read("byteorder") if archive.has("byteorder") else b"little"
        if order != b"little":
            raise NotPlain(f"its byte order is {order[:20]!r}")
        return read_pickle(archive.read("data.pkl"), archive.numbers, 2 * size + ROOM)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise NotPlain(f"it is damaged ({type(error).__name__})") from error


class _Archive:
    def __init__(self, file: BufferedReader, size: int) -> None:
        self._file, self._size = file, size
        self._unread = size
        """The bytes of members that may still be read; overlapping members use it up."""
        self._in_tensors = size + SHARED
        self._storages: dict[str, torch.Tensor] = {}
        names = self._read_directory()
        data = next((name for name in names if name.partition("/")[2] == "data.pkl"), None)
        if data is None:
            raise NotPlain("it is a zip archive without data.pkl")
        folder = data.removesuffix("data.pkl")
        self._members = {name.removeprefix(folder): member for name, member in names.items()}

    def has(self, name: str) -> bool:
        """Returns whether the archive has a file."""
        return name in self._members

    def read(self, name: str) -> bytes:
        """Returns the bytes of a file."""
        return self._file.read(self._seek(name))

    def numbers(self, storage: Storage, dtype: torch.dtype) -> torch.Tensor:
        """Returns the numbers of a storage; reads them from the file once."""
        bytes_each = 1 if storage.kind == BYTES else dtype.itemsize
        if storage.key not in self._storages:
            raw = torch.empty(self._seek(f"data/{storage.key}"), dtype=torch.uint8)
            self._file.readinto(raw.numpy().data)
            self._storages[storage.key] = raw
        raw = self._storages[storage.key]
        if len(raw) != storage.numbers * bytes_each or len(raw) % dtype.itemsize:
            raise NotPlain(f"the file of a tensor's {storage.numbers:,} numbers has {len(raw):,} bytes")
        self._in_tensors -= len(raw)
        if self._in_tensors < 0:
            raise NotPlain("its tensors have more numbers than the file")
        if dtype is torch.bool and len(raw) and int(raw.max()) > 1:
            raise NotPlain("a boolean in it is neither 0 nor 1")
        return raw.view(dtype)

    def _seek(self, name: str) -> int:
        """Seeks to the start of a file and returns its size, after checking that the archive holds all of it."""
        member = self._members.get(name)
        if member is None:
            raise NotPlain(f"it has no {name}")
        header = _LOCAL.unpack(self._read_at(member.header, _LOCAL.size))
        start = member.header + _LOCAL.size + header[9] + header[10]
        self._unread -= member.size
        if header[0] != b"PK\x03\x04" or start + member.size > self._size or self._unread < 0:
            raise NotPlain(f"its {name} is not where its directory says")
        self._file.seek(start)
        return member.size

    def _read_at(self, start: int, count: int) -> bytes:
        if start < 0 or count < 0 or start + count > self._size:
            raise NotPlain("it is not a zip archive, or is truncated")
        self._file.seek(start)
        return self._file.read(count)

    def _read_directory(self) -> dict[str, _Member]:
        """Returns the archive's files by name."""
        count, length, start = self._read_end()
        if count > MAX_FILES:
            raise NotPlain(f"it has {count:,} files; at most {MAX_FILES:,} are expected")
        data, members, place = self._read_at(start, length), {}, 0
        for _ in range(count):
            entry = _ENTRY.unpack(data[place : place + _ENTRY.size])
            name_end = place + _ENTRY.size + entry[10]
            name = data[place + _ENTRY.size : name_end].decode()
            extra, place = data[name_end : name_end + entry[11]], name_end + entry[11] + entry[12]
            if entry[0] != b"PK\x01\x02" or entry[4] != 0 or entry[3] & 1 or name in members:
                raise NotPlain(f"its file {name[:100]!r} is compressed, encrypted, duplicate or missing")
            members[name] = _parse_member(entry, extra)
        return members

    def _read_end(self) -> tuple[int, int, int]:
        """Returns the number of entries in the directory, its length, and its offset."""
        tail = self._read_at(self._size - _END.size, _END.size)
        mark, *_, count, length, start, comment = _END.unpack(tail)
        if mark != b"PK\x05\x06" or comment:
            raise NotPlain("it is not a zip archive, or is truncated")
        place = self._size - _END.size - _LOCATOR.size
        if place >= 0 and (locator := self._read_at(place, _LOCATOR.size)).startswith(b"PK\x06\x07"):
            end = _END_64.unpack(self._read_at(_LOCATOR.unpack(locator)[2], _END_64.size))
            if end[0] != b"PK\x06\x06":
                raise NotPlain("its end record points to no directory")
            count, length, start = end[7:10]
        return count, length, start


def _parse_member(entry: tuple[Any, ...], extra: bytes) -> _Member:
    """Returns the offset and size of an entry; numbers beyond four bytes come from its extra field."""
    packed, size, header = entry[8], entry[9], entry[16]
    large = [number for number in (size, packed, header) if number == 0xFFFFFFFF]
    while large and len(extra) >= 4:
        kind, length = struct.unpack("<2H", extra[:4])
        if kind == 1 and length >= 8 * len(large):
            values = list(struct.unpack(f"<{len(large)}Q", extra[4 : 4 + 8 * len(large)]))
            size, packed, header = (
                values.pop(0) if number == 0xFFFFFFFF else number for number in (size, packed, header)
            )
            break
        extra = extra[4 + length :]
    if packed != size:
        raise NotPlain("a file in it is compressed")
    return _Member(header, size)
