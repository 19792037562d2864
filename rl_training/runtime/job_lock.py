"""A job trains once at a time: one lock that the command line and the flows share."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rl_training.config.paths import locks_root
from rl_training.errors import UserError


@dataclass(frozen=True)
class JobLock:
    """A job's lock, while it is held."""

    holder_file: Path

    def note(self, **facts: str) -> None:
        """Records who holds the lock (`run_dir`, say), for the message that another one gets."""
        self.holder_file.write_text(json.dumps({"pid": os.getpid(), **facts}), encoding="utf-8")


@contextmanager
def job_lock(job: str | None) -> Iterator[JobLock | None]:
    """Holds the lock of `job` within the block; without a name there is none.

    The system lets go of it when the process ends, however it ends.

    Raises:
        UserError: Another run of the job is going on; the message names it.
    """
    if job is None:
        yield None
        return
    path = locks_root() / _file_name(job)
    lock = JobLock(path.with_suffix(".json"))
    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"job {job!r} is training already ({_holder(lock.holder_file)}); a job trains once at a time: wait for it, "
            f"or give this run another job"
        ) from None
    try:
        lock.note()
        yield lock
    finally:
        file_lock.release()


def _holder(path: Path) -> str:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return ", ".join(f"{name} {value}" for name, value in facts.items())
    except (OSError, ValueError, AttributeError):  # it has only just got the lock
        return "who holds it is not recorded yet"


def _file_name(job: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80].strip(".")
    return f"job-{readable}-{hashlib.sha256(job.encode()).hexdigest()[:12]}.lock"
