"""Plain data: values that checkpoints hold and processes exchange, and that are the same when they are read again."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_DEPTH = 20
"""Deepest nesting of lists and mappings in a plain value."""


class NotPlain(Exception):
    """A value is no plain data."""


def copy_plain(value: Any, depth: int = 0) -> Any:
    """Returns a copy of plain data: numbers, text, bools, None, and lists, tuples and dicts of these.

    Scalars of numpy become Python's.

    Raises:
        NotPlain: The value, or a part of it, is of another type, or it is nested more than `MAX_DEPTH` deep.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating) and value.dtype != np.longdouble:
        return value.item()
    if depth == MAX_DEPTH:
        raise NotPlain
    if type(value) in (list, tuple):
        return type(value)(copy_plain(item, depth + 1) for item in value)
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {key: copy_plain(item, depth + 1) for key, item in value.items()}
    raise NotPlain


def is_plain(value: Any) -> bool:
    """Returns whether `copy_plain` takes a value."""
    try:
        copy_plain(value)
    except NotPlain:
        return False
    return True
