"""A watch over calls into an environment: one that does not return is named, and ended where that can be done.

The calls stay in the caller's process and thread, as in training, so that debuggers, displays and ids that only this
process knows work. Python's waits and loops can be ended there, by a signal; what blocks in compiled code can't be.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

from rl_training.system.signal_handlers import check_handlers

T = TypeVar("T")

logger = logging.getLogger(__name__)

SAID_AFTER_SECONDS = 10.0
"""How long a call may take before it is named in a warning."""
CALL_SECONDS = 60.0
"""How long a reset, a step or closing may take."""
MAKING_SECONDS = 600.0
"""How long making an environment may take: it may download, or start a simulator."""
_LOOK_SECONDS = 0.25


class CallBlocked(Exception):
    """A call into an environment did not return in its time, and was ended."""


class _Ended(BaseException):
    """Raised inside a call that is to end; no `Exception`, which an environment may catch."""


class _Call:
    __slots__ = ("began", "said", "seconds", "what")

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        self.began, self.said = time.monotonic(), 0


class CallWatch:
    """Watches one call at a time, within a `with` block or from `start` to `stop`.

    Args:
        env_id: The environment's id, for messages.
        ends: Whether calls are ended, and not only named.
    """

    def __init__(self, env_id: str, *, ends: bool = True) -> None:
        self._env_id = env_id
        self._ends = ends
        self._current: _Call | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to watch."""
        # Only the main thread has signals; a program that uses this one keeps it.
        in_main = threading.current_thread() is threading.main_thread()
        if self._ends and in_main and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._end_call)
        self._thread.start()

    def stop(self) -> None:
        """Watches no longer; leaves signals as they were."""
        self._stop.set()
        self._thread.join()
        if self._can_end():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, what: str, function: Callable[..., T], *args: Any, seconds: float | None = None) -> T:
        """Returns what `function(*args)` returns.

        Args:
            what: The call, as messages name it.
            function: What is called.
            *args: What it is called with.
            seconds: Its time; `CALL_SECONDS` by default.

        Raises:
            CallBlocked: It did not return in its time; the message goes on from the name of the call.
        """
        seconds = CALL_SECONDS if seconds is None else seconds
        try:
            try:
                self._current = _Call(what, seconds)
                return function(*args)
            finally:
                self._current = None
                check_handlers()
        except _Ended:
            self._current = None
            raise CallBlocked(f"did not return within {seconds:g} s") from None

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            call = self._current
            if call is None:
                continue
            age = time.monotonic() - call.began
            if call.said == 0 and age >= SAID_AFTER_SECONDS:
                call.said = 1
                self._say(f"{call.what} has not returned for {SAID_AFTER_SECONDS:g} s; {self._what_follows(call)}")
            if call.said == 1 and age >= call.seconds and self._can_end():
                call.said = 2
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            if call.said == 2 and age >= call.seconds + SAID_AFTER_SECONDS:
                call.said = 3
                self._say(
                    f"{call.what} could not be ended after {call.seconds:g} s: it does not come back from compiled "
                    f"code; end this process: kill -9 {os.getpid()}"
                )

    def _what_follows(self, call: _Call) -> str:
        if not self._ends:
            return "the run waits for it"
        return f"it is ended after {call.seconds:g} s" if self._can_end() else "it can't be ended from here"

    def _can_end(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._end_call

    def _end_call(self, signum: int, frame: FrameType | None) -> None:
        # The call may have returned since the signal was sent.
        if self._current is not None and self._current.said >= 2:
            raise _Ended

    def _say(self, what: str) -> None:
        logger.warning(f"environment {self._env_id}: {what}")
