"""Stops a run: a flag that every loop polls, and the signals that set it."""

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

StopCause = Literal["callback", "signal", "return_reached", "paused", "pruned", "failed"]

EXIT_STOPPED = 75
"""Exit code after a signal has stopped a run that can be resumed."""
EXIT_TERMINATED = 143
"""Exit code after a SIGTERM that came before there was anything to resume; the one that the system uses too."""

CLEANUP_SECONDS = 10.0
"""Time that an interrupted command has to clean up before another signal interrupts the cleanup too."""
UNRESPONSIVE_SECONDS = 20.0
"""Time that training has to poll the flag after a signal has set it."""
EXIT_SECONDS = 25.0
"""Time that the process has to end after a signal, unless its last checkpoint takes longer."""
MLFLOW_SECONDS = 20.0
"""Time after a signal for which the end of a run may wait for MLflow, so that the process ends in `EXIT_SECONDS`."""

_POLL_SECONDS = 0.5


class StopFlag:
    """Asks a run to end; the run polls it between environment steps, minibatches and evaluation steps.

    It may be set from a signal handler or another thread. The first cause stays.
    """

    def __init__(self) -> None:
        self.cause: StopCause | None = None
        self.seen = False
        """Whether a poll has found the flag set."""
        self.pause_at: float = math.inf
        """Environment steps at which training pauses, for a sweep that may resume the run."""
        self._signalled = math.inf

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        if self.cause is None:
            return False
        self.seen = True
        return True

    def request(self, cause: StopCause) -> None:
        """Asks the run to end; a second request changes nothing."""
        if self.cause is None:
            self.cause = cause
        if cause == "signal":
            self._signalled = min(self._signalled, time.monotonic())

    def pause_if_due(self, num_timesteps: int) -> None:
        """Asks the run to end with the cause `paused` if it has reached `pause_at`."""
        if num_timesteps >= self.pause_at:
            self.request("paused")

    def fulfill(self) -> None:
        """Clears a request that is fulfilled once training has ended; one by a signal stays."""
        self.cause = None if math.isinf(self._signalled) else "signal"

    def seconds_left(self) -> float:
        """Returns how long the end of the run may still wait for MLflow: infinitely if no signal has come."""
        return max(0.0, self._signalled + MLFLOW_SECONDS - time.monotonic())

    def hurry(self) -> None:
        """Ends the wait for MLflow: a user wants to go on at once."""
        self._signalled = -math.inf


class StopTraining(Exception):
    """Leaves a training loop in a consistent state, so that the checkpoint can be written."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came when there was no run to stop; it interrupts like Ctrl-C, so everything is cleaned up.

    Args:
        number: The signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        """The exit code of the process, the one that the system uses too."""


class Interruptions:
    """Handles signals by interrupting, but not twice within `CLEANUP_SECONDS`."""

    def __init__(self) -> None:
        self._ignored_until = -math.inf

    def end(self) -> None:
        """Ignores further signals, because the result of this process is decided."""
        self._ignored_until = math.inf

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Interrupts, unless a cleanup is under way."""
        if time.monotonic() < self._ignored_until:
            return
        self._ignored_until = time.monotonic() + CLEANUP_SECONDS
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


@contextmanager
def interrupt_on_signals() -> Iterator[Interruptions]:
    """Lets signals interrupt the block; a second signal does not interrupt the cleanup.

    Raises:
        Terminated: SIGTERM or SIGHUP came.
        KeyboardInterrupt: SIGINT came.
    """
    interruptions = Interruptions()
    with handle_stop_signals(interruptions.interrupt):
        yield interruptions


@contextmanager
def stop_on_signals(stop: StopFlag, on_unresponsive: Callable[[], None] | None = None) -> Iterator[StopFlag]:
    """Sets `stop` on SIGTERM, SIGINT and SIGHUP while the block runs.

    In a script or notebook, which has Python's own handler of SIGINT, a second SIGINT interrupts the block. Programs
    that have another handler, such as the command line, ignore further signals while the run is being saved.

    Args:
        stop: The flag.
        on_unresponsive: Called in another thread if nothing has polled the flag within `UNRESPONSIVE_SECONDS` after a
            signal has set it; not after SIGINT in a script or notebook, whose user can interrupt the block.

    Raises:
        KeyboardInterrupt: A second SIGINT came.
    """
    in_script = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interruptions, came = Interruptions(), set[int]()

    def request(number: int, frame: FrameType | None) -> None:
        if in_script and number == signal.SIGINT and number in came:
            stop.hurry()
            interruptions.interrupt(number, frame)
        came.add(number)
        stop.request("signal")

    def give_up() -> None:
        if in_script and signal.SIGINT in came:
            logger.warning("training does not reach its next step; interrupt it again to stop it without saving")
        elif on_unresponsive is not None:
            on_unresponsive()

    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(stop, over, give_up), daemon=True)
    with handle_stop_signals(request):
        try:
            watch.start()
            yield stop
        finally:
            over.set()
            watch.join()


def _watch(stop: StopFlag, over: threading.Event, on_unresponsive: Callable[[], None]) -> None:
    """Polls the flag; the handler can't notify this thread, because it may interrupt the code of `threading` itself."""
    while not over.wait(_POLL_SECONDS):
        if stop.cause == "signal":
            logger.info("asked to stop: the run saves, and ends within %.0f s", EXIT_SECONDS)
            if not over.wait(UNRESPONSIVE_SECONDS) and not stop.seen:
                on_unresponsive()
            return
