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
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from rl_training.errors import AlreadyTraining, RunTakenOver, UserError
from rl_training.run_layout import CHECKPOINTS, RUN_LOCK, SHIPPER_LOCK, STAGING
from rl_training.security.planted_links import refuse_links
from rl_training.system.durable_files import replace_file
from rl_training.system.paths import locks_root

_ours: dict[Path, str] = {}
"""What this process has written as the holder of each run that it has trained."""


@contextmanager
def job_lock(job: str | None, owner: str | None = None) -> Iterator[None]:
    """Holds the lock of `job` within the block; without a name there is none.

    Args:
        job: The job's name.
        owner: For whom it is held, a Prefect flow run for one. Asked for again for the same owner, it is taken over:
            whoever started that one a second time knows that the first process is gone.

    Raises:
        AlreadyTraining: Another process trains the job; names it.
    """
    if job is None:
        yield
        return
    path = locks_root() / _file_name(job)
    if owner is not None and f"for {owner} " in _read(_holder(path)):
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
    """The lock of a run: it keeps other processes, and other trainers of this one, from changing the run.

    Whoever has this object may take it several times; the run is free once it was let go as often. It is the object's
    and not a thread's, since a flow makes a trainer in one thread and trains in another.

    Args:
        run_dir: The run's directory, which exists.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._path = run_dir, run_dir.absolute() / RUN_LOCK
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Takes the lock; nothing in the run's directory has changed if this fails.

        Raises:
            AlreadyTraining: Another process or trainer has it; names it.
            UserError: The directory can't be written.
        """
        first = not self._lock.is_locked
        try:
            _acquire(self._lock, self._path, f"the run in {self._run_dir}", "wait for it to end, or stop it first")
            if first:
                _write_holder(self._path)
                _ours[self._path] = _read(_holder(self._path))
        except OSError as error:
            self.release()
            raise UserError(f"{self._run_dir} can't be written: {error.strerror or error}") from error

    def release(self) -> None:
        """Lets the lock go once; does nothing if it is not held."""
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def require_free(run_dir: Path) -> None:
    """Checks that no other process trains a run now; changes nothing.

    Raises:
        AlreadyTraining: One does; names it.
        CheckpointError: A file of the run is a link, through which the lock's file could be opened.
    """
    refuse_links(run_dir)
    path = run_dir.absolute() / RUN_LOCK
    if path.exists():
        lock = FileLock(path)
        _acquire(lock, path, f"the run in {run_dir}", "wait for it to end, or stop it first")
        lock.release()


def remove_lock(run_dir: Path) -> None:
    """Removes the files of a run's lock, from a directory that shall hold no run."""
    path = run_dir / RUN_LOCK
    for file in (path, _holder(path)):
        file.unlink(missing_ok=True)


def take_over(run_dir: Path) -> None:
    """Takes a run from the process that has it, if there is one: that process writes nothing to it any more.

    What it is about to give its final name loses its place: either the rename came before this returns, or it fails.
    """
    path = run_dir.absolute() / RUN_LOCK
    _write_holder(path)
    _ours[path] = _read(_holder(path))
    for name in (RUN_LOCK, SHIPPER_LOCK):
        (run_dir / name).unlink(missing_ok=True)
    for staged in run_dir.glob(f"{CHECKPOINTS}/{STAGING}*"):
        shutil.rmtree(staged, ignore_errors=True)


def record_takeover(run_dir: Path, to: str) -> None:
    """Says to the process that trains a run that another one, elsewhere, has taken it over.

    Args:
        run_dir: The run's directory.
        to: Who has it, for messages.
    """
    replace_file(_holder(run_dir / RUN_LOCK), to, sync=False)


def require_not_taken_over(run_dir: Path) -> None:
    """Checks that no other process has taken over a run that this one has trained; to be called before it is written.

    Raises:
        RunTakenOver: Another one has; names it.
    """
    path = run_dir.absolute() / RUN_LOCK
    ours = _ours.get(path)
    if ours is not None and (holder := _read(_holder(path))) != ours:
        raise RunTakenOver(f"the run in {run_dir} was taken over ({holder}); this process writes nothing more to it")


def _acquire(lock: FileLock, path: Path, what: str, advice: str) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise AlreadyTraining(f"{what} is training already ({_read(_holder(path))}); {advice}") from None


def _write_holder(path: Path, owner: str | None = None) -> None:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    whose = f" for {owner}" if owner is not None else ""
    who = f"process {os.getpid()} on {socket.gethostname()}{whose} since {since}"
    replace_file(_holder(path), f"{who}, key {uuid.uuid4().hex[:8]}", sync=False)


def _holder(path: Path) -> Path:
    return path.with_suffix(".holder")


def _read(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8")
    except OSError:  # the other one has only just got the lock
        return "by a process that began this moment"


def _file_name(job: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80].strip(".")
    return f"job-{readable}-{hashlib.sha256(job.encode()).hexdigest()[:12]}.lock"
