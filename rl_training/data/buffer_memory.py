"""Measures the memory that this process may use, for the checks that a buffer fits into it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

RESERVE = 0.1
"""Fraction of the memory that a buffer must leave free."""


def measure_available_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process may still use, given the machine, its control groups, and `ulimit -v`.

    Args:
        root: Where `proc` and `sys` are mounted.
    """
    available = [int(psutil.virtual_memory().available), *_find_free_bytes(root)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        available.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(available))


def _find_free_bytes(root: Path) -> Iterator[int]:
    """Yields the free bytes of this process's control group and of each parent group, for cgroups version 2 and 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount) and (left := _read_free_bytes(folder, *names)) is not None:
                yield left


def _read_free_bytes(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """Returns the limit minus the usage; None without a limit. Inactive file pages count as free."""
    try:
        bound, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # a container can't see its parent groups, and the outermost group has no limit
        return None
    return None if bound == "max" else int(bound) - used + int(statistics.get(cache, 0))


def round_down(size: int, multiple: int) -> int:
    """Rounds `size` down to two significant digits and then to a multiple."""
    digits: int = 10 ** max(0, len(str(size)) - 2)
    return size // digits * digits // multiple * multiple


def format_gigabytes(size: int) -> str:
    """Returns a number of bytes in GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e9:.4f} GB"
