"""Refuses a second training in a process while one is running.

The number of threads of the numeric libraries belongs to the process, and it decides how sums are rounded. Two
trainings at a time would change each other's results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rl_training.errors import UserError


class _Place:
    """A reservation for the one training of the process."""

    def __init__(self) -> None:
        self.taken = False


_lock = threading.Lock()
_reserved: _Place | None = None
_ours: ContextVar[_Place | None] = ContextVar("place of the training", default=None)


def _forget_parent() -> None:
    """Forgets the training of the parent in a forked process."""
    global _lock, _reserved
    _lock, _reserved = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def reserve_training() -> Iterator[None]:
    """Keeps other trainings out of this process within the block, which may train once at a time, in any thread.

    Raises:
        UserError: Another training is running in this process.
    """
    global _reserved
    place = _Place()
    with _lock:
        if _reserved is not None:
            raise UserError(
                "another training runs in this process, and a process has one at a time; wait for it to end, or start "
                "this one in a process of its own, for example by `rl-training train`"
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
    """Allows training within the block, with the reservation of the caller if there is one, else with a new one.

    Raises:
        UserError: Another training is running in this process.
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
