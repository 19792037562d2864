"""Asking a run to stop: a flag that every loop polls, and the signals that set it."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from rl_training.system.signal_handlers import handle_stop_signals

logger = logging.getLogger(__name__)

StopCause = Literal["callback", "signal"]

EXIT_STOPPED = 75
"""Exit code of a process that a signal stopped and whose run can go on."""
EXIT_TERMINATED = 143
"""Exit code after a SIGTERM that came before there was anything to go on from: as the system's own."""

CLEANUP_SECONDS = 10.0
"""How long an interrupted command may take to clean up before another signal interrupts that as well."""
UNRESPONSIVE_SECONDS = 20.0
"""How long training may take to its next poll once a signal has asked it to stop."""
EXIT_SECONDS = 25.0
"""How long after a signal the process may be there, unless its last checkpoint takes longer."""
MLFLOW_SECONDS = 20.0
"""How long after a signal the end of a run may wait for MLflow; the process is to be gone after `EXIT_SECONDS`."""

_LOOK_SECONDS = 0.5


class StopFlag:
    """Set once by whoever wants the run to end; polled between environment steps, minibatches and evaluation steps.

    Setting it is safe from a signal handler and from another thread. The first cause stays.
    """

    def __init__(self) -> None:
        self.cause: StopCause | None = None
        self.heard = False
        """Whether a poll has seen it set."""
        self._signalled = math.inf

    @property
    def requested(self) -> bool:
        """Whether the run shall end."""
        if self.cause is None:
            return False
        self.heard = True
        return True

    def request(self, cause: StopCause) -> None:
        """Asks the run to end; a second request changes nothing."""
        if self.cause is None:
            self.cause = cause
        if cause == "signal":
            self._signalled = min(self._signalled, time.monotonic())

    def seconds_left(self) -> float:
        """Returns how long the end of the run may still wait for others; infinite where no signal has come."""
        return max(0.0, self._signalled + MLFLOW_SECONDS - time.monotonic())


class StopTraining(Exception):
    """Unwinds a training loop from a consistent state to where the checkpoint is written."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came where there was no run to stop; it interrupts as Ctrl-C does, so everything is cleaned up.

    Args:
        number: The signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        """Of a process that ends by it: as the system's own."""


class Interruptions:
    """Whether signals still interrupt."""

    def __init__(self) -> None:
        self._heeded_from = -math.inf

    def end(self) -> None:
        """Lets no signal interrupt any more: what this process comes to is decided."""
        self._heeded_from = math.inf

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal: interrupts, and spares the cleaning up from the next one."""
        if time.monotonic() < self._heeded_from:
            return
        self._heeded_from = time.monotonic() + CLEANUP_SECONDS
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


@contextmanager
def interrupt_on_signals() -> Iterator[Interruptions]:
    """Has signals interrupt the block; a second one does not interrupt the cleaning up.

    Raises:
        Terminated: At SIGTERM and SIGHUP, from wherever the block is.
        KeyboardInterrupt: At SIGINT.
    """
    interruptions = Interruptions()
    with handle_stop_signals(interruptions.interrupt):
        yield interruptions


@contextmanager
def stop_on_signals(stop: StopFlag, deaf: Callable[[], None] | None = None) -> Iterator[StopFlag]:
    """Sets `stop` on SIGTERM, SIGINT and SIGHUP while the block runs.

    Args:
        stop: The flag.
        deaf: Called in a thread where nothing has polled the flag for `UNRESPONSIVE_SECONDS` after a signal has set it.
    """

    def request(number: int, frame: FrameType | None) -> None:
        stop.request("signal")

    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(stop, over, deaf), daemon=True)
    with handle_stop_signals(request):
        try:
            watch.start()
            yield stop
        finally:
            over.set()
            watch.join()


def _watch(stop: StopFlag, over: threading.Event, deaf: Callable[[], None] | None) -> None:
    """Polls, and is not told by the handler: a handler may interrupt the very code that tells threads of things."""
    while not over.wait(_LOOK_SECONDS):
        if stop.cause == "signal":
            logger.info("asked to stop: the run saves, and ends within %.0f s", EXIT_SECONDS)
            if not over.wait(UNRESPONSIVE_SECONDS) and not stop.heard and deaf is not None:
                deaf()
            return
