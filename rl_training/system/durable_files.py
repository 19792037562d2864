"""Writes files and folders so that they are still there, and complete, after the machine has lost power.

The bytes of a file are on disk once the file was synced, and its name once its folder was synced. A rename may reach
the disk before the bytes of the renamed file, so each file is written under another name, synced, and then renamed: a
reader sees the old file or the new one, never a part.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from errno import ENOTDIR
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rl_training.run_layout import STAGING

if TYPE_CHECKING:
    from rl_training.system.file_entry import FileEntry


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Makes a folder and its parents if they are missing; new folders survive a power cut.

    Args:
        path: The folder.
        mode: The permissions of a new folder; its parents get the default ones.

    Raises:
        FileExistsError: A file is in its place.
        NotADirectoryError: A file is in the place of a parent.
    """
    if path.is_dir():
        return
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path.parent))
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Brings the bytes of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Brings the entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def staging_path(target: Path) -> Path:
    """Returns the path beside `target` under which this process writes or removes it."""
    return target.with_name(f"{STAGING}{os.getpid()}-{target.name}")


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Removes what ended processes have left half-written or half-removed in a folder.

    Args:
        folder: The folder.
        name: The final name of what is removed; by default any.
    """
    for path in folder.glob(f"{STAGING}*"):
        pid, _, target = path.name.removeprefix(STAGING).partition("-")
        if name in ("", target) and pid.isdigit() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_file(path: Path, write: Callable[[IO[bytes]], object], *, sync: bool = True) -> FileEntry:
    """Writes a new file.

    Args:
        path: The file, which must not exist.
        write: Called with the open file.
        sync: Whether the bytes are on disk when this returns.

    Returns:
        The size and hash of the bytes that were written; they are not read back.

    Raises:
        OSError: The file can't be written, for example because the disk is full or read-only.
    """
    from rl_training.system.file_entry import FileEntry  # imports pydantic, for which help texts need not wait

    with path.open("xb") as raw:  # "x" follows no link of that name
        file = _HashingFile(raw)
        try:
            write(cast(IO[bytes], file))  # torch.save and this package call only write and flush
        except RuntimeError as error:  # torch's zip writer turns a failed write into an error of its own
            raise (file.error or error) from error
        raw.flush()
        if sync:
            os.fsync(raw.fileno())
    return FileEntry(size=file.size, sha256=file.sha256.hexdigest())


class _HashingFile:
    """A file opened for writing that hashes and counts what is written."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes all of `data`."""
        try:
            self.raw.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Passes the buffered bytes to the system."""
        self.raw.flush()


def replace_file(path: Path, data: str | bytes, *, sync: bool = True) -> None:
    """Writes a small file beside `path` and renames it to `path`.

    Args:
        path: The file; its folder must exist.
        data: The new content.
        sync: Whether the file is on disk when this returns. If not, a power cut may leave an empty file.
    """
    content = data.encode() if isinstance(data, str) else data
    staged = staging_path(path)
    staged.unlink(missing_ok=True)
    try:
        write_file(staged, lambda file: file.write(content), sync=sync)
        if sync:
            move_into_place(staged, path)
        else:
            staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def move_into_place(staged: Path, target: Path) -> None:
    """Renames a file or folder that is on disk, and brings its new name to disk."""
    staged.replace(target)
    sync_directory(target.parent)


def link_or_copy(source: Path, target: Path, *, sync: bool = False) -> None:
    """Gives an immutable file a second name, or copies it if the file system has no hard links.

    Args:
        source: The file.
        target: The new name.
        sync: Whether the bytes of `source` have yet to be brought to disk, as those of a download. A copy is always
            synced.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync = True
    if sync:
        sync_file(target)


def is_same_file(a: Path, b: Path) -> bool:
    """Returns whether both names exist and lead to one file."""
    try:
        return a.samefile(b)
    except FileNotFoundError:
        return False
