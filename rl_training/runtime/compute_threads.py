"""The number of threads that numpy and torch compute with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Uses `count` threads within the block: sums differ between thread counts, so the count is part of a run."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def product_kernels() -> str:
    """Returns the library of numpy's matrix products and the processor it takes this one for, which decide the sums."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]] or pools  # not that of scipy
    return ", ".join(f"{p['internal_api']} {p['version']} {p.get('architecture') or ''}".strip() for p in own)
