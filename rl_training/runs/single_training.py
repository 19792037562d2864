"""One training at a time in a process.

The number of threads that libraries compute with belongs to the process, and with it how sums round. Two trainings at
once would change each other's results, so the second is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rl_training.errors import UserError


class _Place:
    """The place of the process's one training; whoever reserved it trains in it."""

    def __init__(self) -> None:
        self.taken = False


_lock = threading.Lock()
_reserved: _Place | None = None
_ours: ContextVar[_Place | None] = ContextVar("place of the training", default=None)


def _begin_alone() -> None:
    """A forked process has none of its parent's trainings."""
    global _lock, _reserved
    _lock, _reserved = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_alone)


@contextmanager
def reserve_training() -> Iterator[None]:
    """Keeps other trainings out of this process within the block, which may train itself, in a thread of its own too.

    Raises:
        UserError: Another training has begun in this process and has not ended.
    """
    global _reserved
    place = _Place()
    with _lock:
        if _reserved is not None:
            raise UserError(
                "another training runs in this process, and a process has one at a time; wait for it to end, or start "
                "this one in a process of its own, by `rl-training train` for one"
            )
        _reserved = place
    token = _ours.set(place)
    try:
        yield
    finally:
        _ours.reset(token)
        with _lock:
            if _reserved is place:
                _reserved = None


@contextmanager
def train_alone() -> Iterator[None]:
    """Trains within the block: in the place that the caller has reserved, or in one reserved now.

    Raises:
        UserError: As `reserve_training`.
    """
    place = _ours.get()
    if place is None or place is not _reserved or place.taken:
        with reserve_training():
            place = _ours.get()
            assert place is not None
            place.taken = True
            yield
        return
    place.taken = True
    try:
        yield
    finally:
        place.taken = False
