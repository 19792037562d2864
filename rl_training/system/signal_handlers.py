"""Keeps the handlers of the signals that end a process while environments install their own.

Clients of simulators and robots often take SIGINT and SIGTERM for themselves, when they are made or later. A signal
would then end training without a checkpoint, or do nothing. So the handlers that are installed within
`handle_stop_signals` or `keep_handlers` are restored after an environment is made, and regularly during a run.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that ask a process to end: by `kill`, by Ctrl-C, and by closing the terminal."""
CHECK_SECONDS = 0.5
"""Time between two checks of the handlers; once an environment has replaced one, every call checks them."""

Handler = Callable[[int, FrameType | None], None]


class _Kept:
    """The handlers to restore: those of the innermost block."""

    def __init__(self) -> None:
        self.handlers: dict[signal.Signals, Any] = {}
        self.next_check = 0.0
        self.env_id = ""
        """The environment that was made last."""
        self.warned_of: set[str] = set()
        """The environments that have replaced handlers."""


_kept = _Kept()


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that end this process: `SIGNALS`, without SIGHUP if it is ignored, as under `nohup`."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def handle_stop_signals(handler: Handler) -> Iterator[None]:
    """Installs and keeps a handler of the stop signals for the block; does nothing outside the main thread.

    A handler that the block itself installs in its place stays. SIGHUP stays ignored if it is, as under `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        with keep_handlers():
            yield
    finally:
        for number, before in previous.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, before)


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Keeps the current handlers until the end of the block."""
    before, found = _kept.handlers, {number: signal.getsignal(number) for number in SIGNALS}
    _kept.handlers = {number: handler for number, handler in found.items() if handler is not None}
    try:
        yield
    finally:
        _kept.handlers = before


@contextmanager
def ignore_handlers_of_other_threads() -> Iterator[None]:
    """Makes `signal.signal` do nothing in threads other than the main thread within the block.

    It would raise there, so an environment that installs handlers could not be made in such a thread. The handlers
    would be replaced at once anyway.
    """
    install = signal.signal

    def install_in_main_thread(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return install(number, handler)
        return signal.getsignal(number)

    signal.signal = install_in_main_thread  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = install


def restore_handlers(env_id: str | None = None) -> None:
    """Restores the kept handlers, and logs once for each environment that it has replaced them.

    Does nothing outside the main thread.

    Args:
        env_id: The environment that was just called; by default the environment that was made last.
    """
    if env_id is not None:
        _kept.env_id = env_id
    if not _kept.handlers or threading.current_thread() is not threading.main_thread():
        return
    taken = [number.name for number, handler in _kept.handlers.items() if signal.getsignal(number) != handler]
    for number, handler in _kept.handlers.items():
        signal.signal(number, handler)  # all of them, because Python doesn't see handlers that compiled code installs
    if taken and _kept.env_id not in _kept.warned_of:
        _kept.warned_of.add(_kept.env_id)
        logger.warning(
            "environment %s takes %s for itself; rl-training takes them back, so that a signal stops the run, saved",
            _kept.env_id,
            ", ".join(taken),
        )


def check_handlers() -> None:
    """Calls `restore_handlers` if a check is due; cheap enough to call at each step."""
    if _kept.warned_of or time.monotonic() >= _kept.next_check:
        _kept.next_check = time.monotonic() + CHECK_SECONDS
        restore_handlers()
