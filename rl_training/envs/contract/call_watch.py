"""Watches calls into an environment: a call that does not return is named in a warning and, if possible, ended.

The calls stay in the caller's process and thread, as in training, so that debuggers, displays and ids registered only
in this process work. A signal can end Python's waits and loops there, but not a call that blocks in compiled code.
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

WARN_AFTER_SECONDS = 10.0
"""Time that a call may take before a warning names it."""
CALL_SECONDS = 60.0
"""Time limit for a reset, a step or a close."""
MAKING_SECONDS = 600.0
"""Time limit for making an environment, which may download files or start a simulator."""
_LOOK_SECONDS = 0.25


class CallBlocked(Exception):
    """A call into an environment did not return within its time limit, and was ended."""


class _Ended(BaseException):
    """Raised inside a call to end it; not an `Exception`, because an environment may catch those."""


class _Call:
    __slots__ = ("began", "seconds", "stage", "what")

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        self.began = time.monotonic()
        self.stage = 0  # 1: a warning has named the call; 2: a signal was sent; 3: the signal had no effect


class CallWatch:
    """Watches one call at a time, within a `with` block or from `start` to `stop`.

    Args:
        env_id: The environment's id, for messages.
        ends: Whether calls are ended at their time limit, after the warning.
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
        """Starts the watching thread."""
        # Only the main thread receives signals; a program that uses SIGALRM itself keeps its handler.
        in_main = threading.current_thread() is threading.main_thread()
        if self._ends and in_main and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._end_call)
        self._thread.start()

    def stop(self) -> None:
        """Stops the watching thread and restores the signal handler."""
        self._stop.set()
        self._thread.join()
        if self._can_end():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, what: str, function: Callable[..., T], *args: Any, seconds: float | None = None) -> T:
        """Returns the result of `function(*args)`, watched.

        Args:
            what: Name of the call in messages.
            function: The function to call.
            *args: Its arguments.
            seconds: Time limit in seconds; `CALL_SECONDS` by default.

        Raises:
            CallBlocked: The call did not return within its time limit; the message continues the name of the call.
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
            if call.stage == 0 and age >= WARN_AFTER_SECONDS:
                call.stage = 1
                self._warn(f"{call.what} has not returned for {WARN_AFTER_SECONDS:g} s; {self._explain_outcome(call)}")
            if call.stage == 1 and age >= call.seconds and self._can_end():
                call.stage = 2
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            if call.stage == 2 and age >= call.seconds + WARN_AFTER_SECONDS:
                call.stage = 3
                self._warn(
                    f"{call.what} could not be ended after {call.seconds:g} s because it blocks in compiled code; "
                    f"end this process: kill -9 {os.getpid()}"
                )

    def _explain_outcome(self, call: _Call) -> str:
        if not self._ends:
            return "the run waits for it"
        return f"it is ended after {call.seconds:g} s" if self._can_end() else "it can't be ended from here"

    def _can_end(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._end_call

    def _end_call(self, signum: int, frame: FrameType | None) -> None:
        # The call may have returned since the signal was sent.
        if self._current is not None and self._current.stage >= 2:
            raise _Ended

    def _warn(self, what: str) -> None:
        logger.warning(f"environment {self._env_id}: {what}")
