"""Files and directories that survive a kill: staged beside their target, synced to disk, then renamed.

A name that ends up final is given by a rename alone, so that whatever has a final name is whole.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from rl_training.run_layout import STAGING
from rl_training.system.durable_files import sync_directory, sync_file

DAMAGED = "damaged-"
"""Prefix of a damaged checkpoint that was in the way of a new one of its step."""

SUPERSEDED = "superseded-"
"""Prefix of a checkpoint in the moment in which a later one of the same step takes its place."""


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: NonNegativeInt
    """Bytes."""
    sha256: Sha256


def stage(root: Path, name: str) -> Path:
    """Makes an empty directory beside the target `root / name`, as readable as any the user makes."""
    path = root / f"{STAGING}{os.getpid()}-{name}"
    path.mkdir()
    return path


def sweep(root: Path) -> None:
    """Removes what processes that are gone left half written, and checkpoints that a later one has replaced."""
    for path in root.glob(f"{STAGING}*"):
        pid = path.name.removeprefix(STAGING).split("-")[0]
        if pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in root.glob(f"{SUPERSEDED}*"):
        if (root / path.name.removeprefix(SUPERSEDED)).exists():
            remove(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> FileEntry:
    """Writes a new file and syncs it to disk.

    Args:
        path: Where; it must not exist.
        write: Is handed the open file.

    Returns:
        Its size and hash, computed from what was written, not read back.

    Raises:
        OSError: The disk is full, read-only, or the like.
    """
    with path.open("xb") as raw:
        file = _HashingFile(raw)
        try:
            write(cast(IO[bytes], file))  # torch.save and we need no more of a file than write and flush
        except RuntimeError as error:  # torch's zip writer turns a failing write into an error of its own
            raise (file.error or error) from error
        raw.flush()
        os.fsync(raw.fileno())
    return FileEntry(size=file.size, sha256=file.sha256.hexdigest())


class _HashingFile:
    """A file opened for writing that hashes and counts what goes through it."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes bytes, all of them."""
        try:
            self.raw.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Hands what is buffered to the system."""
        self.raw.flush()


def link(source: Path, target: Path) -> None:
    """Gives an immutable file that is on disk another name; a copy of it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def link_foreign(source: Path, target: Path) -> None:
    """As `link`, of a file that this run has not written: a download may be in the system's memory alone."""
    link(source, target)
    sync_file(target)


def same_file(a: Path, b: Path) -> bool:
    """Returns whether both names are there and lead to one file."""
    try:
        return a.samefile(b)
    except FileNotFoundError:
        return False


def publish(staged: Path, target: Path) -> None:
    """Gives a staged directory its final name; one that is there is removed, after the new one is in place."""
    sync_directory(staged)
    old = None
    if target.exists():
        old = target.with_name(SUPERSEDED + target.name)
        target.rename(old)
    staged.rename(target)
    sync_directory(target.parent)
    if old is not None:
        remove(old)


def set_aside(target: Path) -> Path:
    """Renames a damaged checkpoint to a free name `damaged-...` and returns it."""
    for i in itertools.count():
        aside = target.with_name(f"{DAMAGED}{target.name}" + (f"-{i}" if i else ""))
        if not aside.exists():
            break
    target.rename(aside)
    return aside


def remove(directory: Path) -> None:
    """Removes a checkpoint: its final name goes first, so that no half of one ever has it."""
    doomed = directory.with_name(f"{STAGING}{os.getpid()}-{directory.name}")
    directory.rename(doomed)
    shutil.rmtree(doomed)


def replace_file(path: Path, text: str) -> None:
    """Writes a small text file beside its target, syncs it, and renames it over the target."""
    beside = path.with_name(f"{STAGING}{os.getpid()}-{path.name}")
    beside.unlink(missing_ok=True)
    try:
        write_file(beside, lambda file: file.write(text.encode()))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
