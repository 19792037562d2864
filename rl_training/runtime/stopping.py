"""Asking a run to stop: a flag that every loop polls, and the signals that set it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

StopCause = Literal["callback", "signal"]


class StopFlag:
    """Set once by whoever wants the run to end; polled between environment steps, minibatches and evaluation steps.

    Setting it is safe from a signal handler and from another thread. The first cause stays.
    """

    def __init__(self) -> None:
        self.cause: StopCause | None = None

    @property
    def requested(self) -> bool:
        """Whether the run shall end."""
        return self.cause is not None

    def request(self, cause: StopCause) -> None:
        """Asks the run to end; a second request changes nothing."""
        if self.cause is None:
            self.cause = cause


class StopTraining(Exception):
    """Unwinds a training loop from a consistent state to where the checkpoint is written."""


@contextmanager
def stop_on_signals(stop: StopFlag) -> Iterator[StopFlag]:
    """Sets `stop` on SIGTERM and SIGINT while the block runs.

    A no-op outside of the main thread: no handler can be installed there, and the main thread's owner sets the flag.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(signum: int, frame: FrameType | None) -> None:
        stop.request("signal")

    previous = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
