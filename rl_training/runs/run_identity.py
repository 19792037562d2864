"""The identity of a new run: random, unless the caller chooses it.

A trial of a sweep has an identity that follows from the sweep, so that a process which was killed before its first
checkpoint is followed by one that continues the same run, here and in MLflow.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_chosen: ContextVar[str | None] = ContextVar("run_uid of the next run", default=None)


def make_run_uid() -> str:
    """Returns the identity of a new run: 32 hexadecimal digits."""
    return _chosen.get() or uuid.uuid4().hex


@contextmanager
def use_run_uid(run_uid: str) -> Iterator[None]:
    """Gives a new run of the block this identity.

    Args:
        run_uid: 32 hexadecimal digits.
    """
    token = _chosen.set(run_uid)
    try:
        yield
    finally:
        _chosen.reset(token)
