"""Files and folders that are still there, and complete, after the machine has lost power.

A file's bytes are on disk once the file was synced; its name, once the folder was that it is in. A rename may reach the
disk before the bytes of what was renamed.
"""

from __future__ import annotations

import os
from errno import ENOTDIR
from pathlib import Path


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Makes a folder where there is none, and those above it; each that is new stays after a power cut.

    Args:
        path: The folder.
        mode: Its permissions, if it is new.

    Raises:
        FileExistsError: A file is in its place.
        NotADirectoryError: A file is in the place of a folder above it.
    """
    if path.is_dir():
        return
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path.parent))
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Brings a file's bytes to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Brings a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
