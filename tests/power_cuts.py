"""Simulates what a power cut could leave in a folder, at each moment of a program that writes to the folder.

`Disk` watches this process's own calls to the system. It knows which bytes of each file and which entries
of each folder were synced; a power cut may take anything else. At each moment it keeps three of the possible outcomes:

- `empty`: names are on disk as soon as they are given, bytes only once they are synced, as on ext4;
- `zeros`: the same, and a file has its length before its bytes, which read as zeros;
- `old`: nothing is on disk that was not synced, neither bytes nor names.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

Tree = tuple[tuple[str, int, bytes | None], ...]
"""Path, number and bytes of each file; names of one file have one number, and a folder has None for bytes."""

CALLS = ("fsync", "rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir")

PAGE = 4096


@dataclass(frozen=True)
class Cut:
    """One thing that a power cut may leave."""

    moment: str
    """Number of the call, what it was, and which outcome this is."""
    tree: Tree
    database: tuple[bytes, ...]
    """Pieces of an SQLite database beside the folder: each of its commits is on disk by itself."""

    def restore(self, root: Path) -> None:
        """Writes the tree to an empty folder, hard links included."""
        first: dict[int, Path] = {}
        for name, number, data in self.tree:
            path = root / name
            if data is None:
                path.mkdir()
            elif number in first:
                os.link(first[number], path)
            else:
                path.write_bytes(data)
                first[number] = path


class Disk:
    """Records what power cuts could leave of a folder.

    Args:
        root: The folder, which is on disk as it is.
        database: An SQLite database outside of it.
    """

    def __init__(self, root: Path, database: Path) -> None:
        self.cuts: list[Cut] = []
        self._root, self._database = root, database
        self._bytes: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, tuple[int, bool]]] = {}
        """By number; a file without a name keeps its number, and a later file of the same inode gets another one."""
        self._numbers: dict[int, int] = {}
        self._counter = itertools.count()
        self._lock = threading.RLock()
        self._seen: set[int] = set()
        self._count = 0
        self._stored: tuple[Any, tuple[bytes, ...]] = (None, ())
        self._pieces: dict[bytes, bytes] = {}
        for folder, _, names in os.walk(root):
            self._sync(Path(folder))
            for name in names:
                self._sync(Path(folder, name))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block, records a cut before and after each call that brings something to disk or renames it."""
        with patch.multiple(os, **{name: self._watched(name, getattr(os, name)) for name in CALLS}):
            yield

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                if name == "fsync":
                    path = Path(f"/proc/self/fd/{arguments[0]}").readlink()
                    if not path.is_relative_to(self._root):
                        return call(*arguments, **options)
                self._record(f"before {name}")
                if name in ("unlink", "remove", "rmdir"):
                    self._forget(arguments[0], options.get("dir_fd"))
                elif name in ("rename", "replace"):
                    self._forget(arguments[1], None)
                result = call(*arguments, **options)
                if name == "fsync":
                    self._sync(path)
                self._record(f"after {name} {arguments[0]}")
                return result

        return watched

    def _forget(self, path: Any, folder: int | None) -> None:
        """Forgets the inode of a file whose last name was removed; its synced bytes may come back."""
        try:
            status = os.stat(path, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            self._numbers.pop(status.st_ino, None)

    def _sync(self, path: Path) -> None:
        number = self._number(path.stat().st_ino)
        if path.is_dir():
            entries = {entry.name: (self._number(entry.inode()), entry.is_dir()) for entry in os.scandir(path)}
            self._entries[number] = entries
        else:
            self._bytes[number] = path.read_bytes()

    def _number(self, inode: int) -> int:
        if inode not in self._numbers:
            self._numbers[inode] = next(self._counter)
        return self._numbers[inode]

    def _record(self, moment: str) -> None:
        self._count += 1
        outcomes = {"empty": self._now(zeros=False), "zeros": self._now(zeros=True), "old": self._synced()}
        database = self._committed()
        for outcome, tree in outcomes.items():
            if (key := hash((tree, database))) not in self._seen:
                self._seen.add(key)
                self.cuts.append(Cut(f"{self._count} {moment}: {outcome}", tree, database))

    def _now(self, *, zeros: bool) -> Tree:
        tree: list[tuple[str, int, bytes | None]] = []
        for path in sorted(self._root.rglob("*")):
            try:
                status = path.lstat()
            except FileNotFoundError:  # another thread has removed it
                continue
            number = self._number(status.st_ino)
            data = None if path.is_dir() else self._bytes.get(number, b"")
            if zeros and data is not None:
                data = data.ljust(status.st_size, b"\0")
            tree.append((str(path.relative_to(self._root)), number, data))
        return tuple(tree)

    def _synced(self) -> Tree:
        def below(folder: int, prefix: str) -> Iterator[tuple[str, int, bytes | None]]:
            for name, (number, is_folder) in sorted(self._entries.get(folder, {}).items()):
                yield prefix + name, number, None if is_folder else self._bytes.get(number, b"")
                if is_folder:
                    yield from below(number, f"{prefix}{name}/")

        return tuple(below(self._number(self._root.stat().st_ino), ""))

    def _committed(self) -> tuple[bytes, ...]:
        state = self._database.stat()
        version = (state.st_mtime_ns, state.st_size)
        if self._stored[0] != version:
            connection = sqlite3.connect(self._database)
            content = connection.serialize()
            connection.close()
            # From commit to commit most pages stay as they are, and are held once.
            pieces = (content[i : i + PAGE] for i in range(0, len(content), PAGE))
            self._stored = (version, tuple(self._pieces.setdefault(piece, piece) for piece in pieces))
        return self._stored[1]


def restore_database(path: Path, pieces: tuple[bytes, ...]) -> None:
    """Gives a database that is open elsewhere its former content."""
    source, target = sqlite3.connect(":memory:"), sqlite3.connect(path)
    source.deserialize(b"".join(pieces))
    source.backup(target)
    source.close()
    target.close()
