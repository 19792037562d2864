"""Locks that the command line and the flows share: a job trains once at a time, and so does a run.

The system releases a lock when its process ends, however it ends. A process that was thought dead but only slept still
holds its lock, so another process can take its run over. The first one notices before it writes anything else
(`require_not_taken_over`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from rl_training.errors import AlreadyTraining, RunTakenOver, UserError
from rl_training.run_layout import CHECKPOINTS, RUN_LOCK, SHIPPER_LOCK, SINKS, STAGING
from rl_training.security.planted_links import refuse_links
from rl_training.system.durable_files import replace_file
from rl_training.system.paths import locks_root

_ours: dict[Path, str] = {}
"""The holder text that this process has written for each run that it has trained."""


@contextmanager
def job_lock(job: str | None, owner: str | None = None) -> Iterator[None]:
    """Holds the lock of a job within the block; does nothing without a job.

    Args:
        job: The name of the job.
        owner: On whose behalf the lock is held, for example a Prefect flow run. A second process with the same owner
            takes the lock over, because an owner starts again only after its first process is gone.

    Raises:
        AlreadyTraining: Another process, which the message names, trains the job.
    """
    if job is None:
        yield
        return
    path = locks_root() / _make_file_name(job)
    if owner is not None and f"for {owner} " in _read(_locate_holder(path)):
        path.unlink(missing_ok=True)
    advice = "a job trains once at a time: wait for it to end, or give this run another job"
    lock = FileLock(path)
    _acquire(lock, path, f"job {job!r}", advice)
    try:
        _write_holder(path, owner)
        yield
    finally:
        lock.release()


class RunLock:
    """The lock of a run, which keeps other processes, and other trainers in this process, from changing the run.

    It can be acquired several times, and is free after as many releases. It belongs to this object rather than to a
    thread, because a flow makes a trainer in one thread and trains in another.

    Args:
        run_dir: The run directory, which must exist.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._path = run_dir, run_dir.absolute() / RUN_LOCK
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Acquires the lock; if this fails, nothing in the run directory has changed.

        Raises:
            AlreadyTraining: Another process or trainer, which the message names, holds the lock.
            UserError: The directory can't be written.
        """
        first = not self._lock.is_locked
        try:
            _acquire(self._lock, self._path, f"the run in {self._run_dir}", "wait for it to end, or stop it first")
            if first:
                _write_holder(self._path)
                _ours[self._path] = _read(_locate_holder(self._path))
        except OSError as error:
            self.release()
            raise UserError(f"{self._run_dir} can't be written: {error.strerror or error}") from error

    def release(self) -> None:
        """Releases the lock once; does nothing if it is not held."""
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def require_free(run_dir: Path) -> None:
    """Checks that no process is training a run; changes nothing.

    Raises:
        AlreadyTraining: A process, which the message names, is training the run.
        CheckpointError: A file of the run is a link, so the lock file might lie elsewhere.
    """
    refuse_links(run_dir)
    path = run_dir.absolute() / RUN_LOCK
    if path.exists():
        lock = FileLock(path)
        _acquire(lock, path, f"the run in {run_dir}", "wait for it to end, or stop it first")
        lock.release()


def is_locked(run_dir: Path) -> bool:
    """Returns whether a process is training a run."""
    path = run_dir.absolute() / RUN_LOCK
    if not path.is_file() or path.is_symlink():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # another user's run
        return False
    lock.release()
    return False


def remove_lock(run_dir: Path) -> None:
    """Removes the lock files of a run from a directory that is to hold no run."""
    path = run_dir / RUN_LOCK
    for file in (path, _locate_holder(path)):
        file.unlink(missing_ok=True)


def take_over(run_dir: Path) -> None:
    """Takes a run over from the process that holds it, if there is one; that process writes nothing more to it.

    Its staged checkpoints are removed, so its next rename to a final name either happens before this returns, or fails.
    """
    path = run_dir.absolute() / RUN_LOCK
    _write_holder(path)
    _ours[path] = _read(_locate_holder(path))
    for lock in (path, run_dir / SHIPPER_LOCK, *run_dir.glob(f"{SINKS}/*.lock")):
        lock.unlink(missing_ok=True)
    for staged in run_dir.glob(f"{CHECKPOINTS}/{STAGING}*"):
        shutil.rmtree(staged, ignore_errors=True)


def record_takeover(run_dir: Path, to: str) -> None:
    """Tells the process that trains a run that another process, elsewhere, has taken it over.

    Args:
        run_dir: The run directory.
        to: The new holder, for messages.
    """
    replace_file(_locate_holder(run_dir / RUN_LOCK), to, sync=False)


def require_not_taken_over(run_dir: Path) -> None:
    """Checks that no other process has taken over a run of this process; call it before writing to the run.

    Raises:
        RunTakenOver: Another process, which the message names, has taken it over.
    """
    path, holder_path = _locate(run_dir.absolute())
    ours = _ours.get(path)
    if ours is not None and (holder := _read(holder_path)) != ours:
        raise RunTakenOver(f"the run in {run_dir} was taken over ({holder}); this process writes nothing more to it")


def _acquire(lock: FileLock, path: Path, what: str, advice: str) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise AlreadyTraining(f"{what} is training already ({_read(_locate_holder(path))}); {advice}") from None


def _write_holder(path: Path, owner: str | None = None) -> None:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    whose = f" for {owner}" if owner is not None else ""
    who = f"process {os.getpid()} on {socket.gethostname()}{whose} since {since}"
    replace_file(_locate_holder(path), f"{who}, key {uuid.uuid4().hex[:8]}", sync=False)


@cache
def _locate(run_dir: Path) -> tuple[Path, Path]:
    """Returns the lock of a run and its holder file; each line of metrics asks for them."""
    path = run_dir / RUN_LOCK
    return path, _locate_holder(path)


def _locate_holder(path: Path) -> Path:
    return path.with_suffix(".holder")


def _read(holder: Path) -> str:
    try:
        descriptor = os.open(holder, os.O_RDONLY)  # a file object takes three times as long
        try:
            return os.read(descriptor, 4096).decode()
        finally:
            os.close(descriptor)
    except OSError:  # the other process has only just acquired the lock
        return "by a process that has just begun"


def _make_file_name(job: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80].strip(".")
    return f"job-{readable}-{hashlib.sha256(job.encode()).hexdigest()[:12]}.lock"
