"""A job trains once at a time, and so does a run: locks that the command line and the flows share."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rl_training.config.paths import locks_root
from rl_training.errors import UserError

RUN_LOCK = "training.lock"
"""In a run's directory: held while the run trains."""


@contextmanager
def job_lock(job: str | None) -> Iterator[None]:
    """Holds the lock of `job` within the block; without a name there is none.

    The system lets go of it when the process ends, however it ends.

    Raises:
        UserError: The job is training already; names the process that trains it.
    """
    if job is None:
        yield
        return
    advice = "a job trains once at a time: wait for it to end, or give this run another job"
    with _exclusive(locks_root() / _file_name(job), f"job {job!r}", advice):
        yield


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Holds the lock of a run within the block, so that no second process trains it on.

    Raises:
        UserError: The run is training already; names the process that trains it.
    """
    with _exclusive(run_dir / RUN_LOCK, f"the run in {run_dir}", "wait for it to end, or stop it first"):
        yield


@contextmanager
def _exclusive(path: Path, what: str, advice: str) -> Iterator[None]:
    holder = path.with_suffix(".holder")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{what} is training already ({_read(holder)}); {advice}") from None
    try:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _read(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8")
    except OSError:  # the other one has only just got the lock
        return "by a process that began this moment"


def _file_name(job: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80].strip(".")
    return f"job-{readable}-{hashlib.sha256(job.encode()).hexdigest()[:12]}.lock"
