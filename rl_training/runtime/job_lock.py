"""A job trains once at a time: one lock that the command line and the flows share."""

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
    path = locks_root() / _file_name(job)
    holder = path.with_suffix(".holder")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"job {job!r} is training already ({_read(holder)}), and a job trains once at a time: wait for it to end, "
            f"or give this run another job"
        ) from None
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
