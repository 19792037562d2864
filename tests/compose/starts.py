"""Starts of the services and of a training while other processes keep every core busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commands import TestFailed, say
from flow_checks import LEARNER, Flows
from stack import Stack


def measure_starts(stack: Stack, count: int, busy: int) -> dict[str, Any]:
    """Starts the services from nothing and trains, several times, beside processes that never wait.

    Args:
        stack: The services, which are down.
        count: How many starts.
        busy: How many processes keep the cores busy.
    """
    starts = []
    with busy_processes(busy):
        for number in range(1, count + 1):
            say(f"start {number} of {count}, beside {busy} busy processes")
            starts.append(_start(stack))
            stack.down()
    good = sum(start["error"] is None for start in starts)
    say(f"{good} of {count} starts are good")
    return {"busy_processes": busy, "good": good, "starts": starts}


def _start(stack: Stack) -> dict[str, Any]:
    began, error = time.monotonic(), None
    up = trained = None
    try:
        stack.up()
        up = round(time.monotonic() - began, 1)
        Flows(stack).train("train-flow/default", overrides=LEARNER)
        trained = round(time.monotonic() - began, 1)
    except (TestFailed, AssertionError) as failed:
        error = str(failed)[-3000:]
        say(error)
    return {"up_seconds": up, "trained_seconds": trained, "load": round(os.getloadavg()[0], 1), "error": error}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute without a pause, for the length of the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
