"""How many files a process may have open: as many as the system allows, rather than its default for shells."""

from __future__ import annotations

import resource
from contextlib import suppress
from errno import EMFILE, ENFILE

MOST = 65_536
"""Files that are asked for where the system sets no limit; more would only make loops over all of them slow."""


def raise_limit() -> None:
    """Raises this process's limit on open files, which its children inherit, to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def explain_too_many_files(error: BaseException) -> str | None:
    """Returns what to do if an error says that too many files are open, else None."""
    if not isinstance(error, OSError) or error.errno not in (EMFILE, ENFILE):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"too many open files: the limit is {limit}; raise it (`ulimit -n`, or the service's or container's setting)"
