"""Handlers of the signals that end a process, kept while environments run that install their own.

Clients of simulators and robots often take SIGINT and SIGTERM for themselves, when they are made or later. A signal
would then end training without a checkpoint, or do nothing at all. So the handlers within `handle_stop_signals` or
`keep_handlers` are put back: after an environment is made, and at looks that happen all through a run.
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
"""What asks a process to end: `kill`, Ctrl-C, and a terminal that closes."""
LOOK_SECONDS = 0.5
"""Between two looks at the handlers, until an environment has replaced one: from then on each call is a look."""

Handler = Callable[[int, FrameType | None], None]


class _Kept:
    """The handlers to put back; those of the innermost block."""

    def __init__(self) -> None:
        self.handlers: dict[signal.Signals, Any] = {}
        self.next_look = 0.0
        self.env_id = ""
        """Of the environment that was made last."""
        self.warned_of: set[str] = set()
        """Environments that have replaced handlers."""


_kept = _Kept()


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that end this process: all of `SIGNALS`, but not SIGHUP if it is ignored, as by `nohup`."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def handle_stop_signals(handler: Handler) -> Iterator[None]:
    """Installs a handler for the block and keeps it; does nothing outside of the main thread, which alone has handlers.

    What the block itself has put in its place stays. SIGHUP stays ignored if it is: `nohup` started the process.
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
    """Keeps the handlers that stand at the block's beginning, until its end."""
    before, found = _kept.handlers, {number: signal.getsignal(number) for number in SIGNALS}
    _kept.handlers = {number: handler for number, handler in found.items() if handler is not None}
    try:
        yield
    finally:
        _kept.handlers = before


@contextmanager
def ignore_handlers_of_other_threads() -> Iterator[None]:
    """Has `signal.signal` change nothing in threads other than the main one, within the block; it would raise there.

    Where training runs in such a thread, an environment that installs handlers could not be made. They would be
    replaced at once anyway.
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
    """Puts the kept handlers back, and logs once that an environment has replaced them.

    Does nothing outside of the main thread.

    Args:
        env_id: The environment that was called last; by default the one that was made last.
    """
    if env_id is not None:
        _kept.env_id = env_id
    if not _kept.handlers or threading.current_thread() is not threading.main_thread():
        return
    taken = [number.name for number, handler in _kept.handlers.items() if signal.getsignal(number) != handler]
    for number, handler in _kept.handlers.items():
        signal.signal(number, handler)  # each of them: one that compiled code has installed does not show
    if taken and _kept.env_id not in _kept.warned_of:
        _kept.warned_of.add(_kept.env_id)
        logger.warning(
            "environment %s takes %s for itself; rl-training takes them back, so that a signal stops the run, saved",
            _kept.env_id,
            ", ".join(taken),
        )


def check_handlers() -> None:
    """Calls `restore_handlers` if that is due: cheap enough for each step."""
    if _kept.warned_of or time.monotonic() >= _kept.next_look:
        _kept.next_look = time.monotonic() + LOOK_SECONDS
        restore_handlers()
