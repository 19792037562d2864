"""Directories for downloads, which end with their use, and at the latest with the process that made them.

The directories of a process are in one folder, whose lock the process holds. What a killed process has left has a free
lock, and is removed by the next process that downloads something.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock, Timeout

from rl_training.system.paths import downloads_root

LOCK = ".lock"
"""Suffix of the file beside a folder of downloads that its process holds locked."""

KEEP_SECONDS = 24 * 3600.0
"""Age after which a folder without a lock is removed; version 0.1.0 made such folders."""


class _Downloads:
    """The downloads of a block or a process, in a folder that is made for the first of them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._folder: Path | None = None
        self._lock: FileLock | None = None

    def make_directory(self) -> Path:
        with self._guard:
            if self._folder is None:
                self._folder, self._lock = _make_folder(downloads_root())
            return Path(tempfile.mkdtemp(dir=self._folder))

    def remove(self) -> None:
        """Removes the downloads, unless this is a forked child, whose parent still uses them."""
        with self._guard:
            folder, lock = self._folder, self._lock
            self._folder = self._lock = None
            if folder is not None and lock is not None and self._process == os.getpid():
                _remove(folder, lock)


_of_block: ContextVar[_Downloads | None] = ContextVar("downloads_of_block", default=None)
_of_process: dict[tuple[int, Path], _Downloads] = {}


@contextmanager
def discard_downloads() -> Iterator[None]:
    """Removes what is downloaded within the block when the block ends."""
    downloads = _Downloads()
    token = _of_block.set(downloads)
    try:
        yield
    finally:
        _of_block.reset(token)
        downloads.remove()


def make_download_directory() -> Path:
    """Returns a new, empty directory for a download.

    It exists until the end of the innermost `discard_downloads` block, or else until the end of this process.
    """
    downloads = _of_block.get()
    if downloads is None:
        downloads = _of_process.setdefault((os.getpid(), downloads_root()), _Downloads())
    return downloads.make_directory()


@atexit.register
def _discard_at_exit() -> None:
    for downloads in _of_process.values():
        downloads.remove()


def _make_folder(root: Path) -> tuple[Path, FileLock]:
    _remove_abandoned(root)
    handle, path = tempfile.mkstemp(suffix=LOCK, dir=root)
    os.close(handle)
    lock = FileLock(path, thread_local=False)
    lock.acquire()  # before the folder exists, so that no other process takes the folder for abandoned
    folder = Path(path.removesuffix(LOCK))
    folder.mkdir(mode=0o700)
    return folder, lock


def _remove_abandoned(root: Path) -> None:
    """Removes the downloads of processes that have ended without removing them."""
    for path in sorted(root.iterdir()):
        with suppress(OSError, Timeout):
            if path.suffix == LOCK:
                lock = FileLock(path, thread_local=False)
                lock.acquire(timeout=0)
                _remove(path.with_suffix(""), lock)
            elif not Path(f"{path}{LOCK}").exists() and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
