"""Raises the limit on open files from the default of shells to what the system allows."""

from __future__ import annotations

import resource
from contextlib import suppress
from errno import EMFILE, ENFILE

MAX_FILES = 65_536
"""The limit to ask for if the system sets none; a higher limit would slow down loops over all descriptors."""


def raise_limit() -> None:
    """Raises the limit on open files of this process and its children to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def explain_too_many_files(error: BaseException) -> str | None:
    """Returns what to do if `error` says that too many files are open, else None."""
    if not isinstance(error, OSError) or error.errno not in (EMFILE, ENFILE):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"too many open files: the limit is {limit}; raise it (`ulimit -n`, or the service's or container's setting)"
