"""Functions that are imported when they are called, so that a list of algorithms needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any


def late(name: str) -> Callable[..., Any]:
    """Returns a function that imports the one called `module:function` and calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return resolve_name(name)(*args, **kwargs)

    return call
