"""A process beside training: notices that training has ended, ends in bounded time after it, and reports to it.

Its standard input is a pipe from the training process, which closes when training ends or its process dies.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TextIO

POLL_SECONDS = 1.0
"""Interval at which the process looks whether training has died without closing the pipe."""


class Lifetime:
    """Watches the training process, and ends this process some time after training has ended.

    Args:
        on_timeout: Called right before this process is ended.
        drain_seconds: How long this process may outlive training; counted anew by `extend`.
    """

    def __init__(self, on_timeout: Callable[[], object], drain_seconds: float) -> None:
        self.over = threading.Event()
        """Set when training has ended or its process has died."""
        self.parent = os.getppid()
        self.on_timeout: Callable[[], object] = on_timeout
        self._drain_seconds, self._deadline = drain_seconds, math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def extend(self) -> None:
        """Counts the time that this process may outlive training anew, from now on."""
        self._deadline = time.monotonic() + self._drain_seconds

    def _watch(self) -> None:
        while os.getppid() == self.parent:
            readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
        self.extend()
        self.over.set()
        while (left := self._deadline - time.monotonic()) > 0:
            time.sleep(left)
        try:
            self.on_timeout()
        finally:
            exit_now(1)  # the main thread may hang in a request; a later process can send the piece again


def run_at_low_priority(work: Callable[[], None]) -> None:
    """Runs work that gives way to training, and returns when it ends.

    Linux lowers the priority of a single thread, so the process itself keeps the normal one, which it would not get
    back without special rights. Elsewhere the whole process has the low priority from then on.
    """
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(10,)) as thread:
        thread.submit(work).result()


def reply(replies: TextIO, message: Mapping[str, Any]) -> bool:
    """Writes a line of JSON for the training process; returns False if that process is gone."""
    try:
        print(json.dumps(message), file=replies, flush=True)
    except OSError:
        return False
    return True


def exit_now(code: int) -> NoReturn:
    """Ends this process at once; a regular exit takes long on a busy machine, and everything is written already."""
    logging.shutdown()
    os._exit(code)
