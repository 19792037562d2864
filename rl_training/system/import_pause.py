"""Imports large libraries, such as torch and Prefect, without collections of garbage in between."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pauses the collection of reference cycles within a block that imports a large library for the first time.

    The imports make a million objects that stay. Each collection would visit all of them, which takes an eighth of a
    second in all for torch and half a second for a Prefect server, so the collector is also told to leave them alone
    afterwards (`gc.freeze`). In a process that has imported torch, or that collects nothing anyway, this does nothing.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
