"""Waits for an event with a limit that only a fault reaches, however busy the machine is."""

import time
from collections.abc import Callable

LIMIT = 300.0
"""Seconds."""


def wait_for(condition: Callable[[], bool], seconds: float = LIMIT) -> None:
    """Waits until `condition()` is true.

    Raises:
        AssertionError: It has not become true within the limit.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
        time.sleep(0.05)
