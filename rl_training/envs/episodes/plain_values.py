"""Plain data: values that checkpoints hold and processes exchange, and that are the same when they are read again."""

from __future__ import annotations

from collections.abc import Mapping
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


def copy_plain_info(info: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the entries of an info that can be sent between processes, and the types of the others by key.

    Arrays of numbers and text are kept as well.
    """
    kept: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for key, value in info.items():
        try:
            kept[key] = _copy_with_arrays(value)
        except NotPlain:
            left_out[str(key)] = type(value).__name__
    return kept, left_out


def _copy_with_arrays(value: Any) -> Any:
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        if value.dtype.hasobject:
            raise NotPlain
        return value
    if type(value) is dict:
        return {copy_plain(key): _copy_with_arrays(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy_with_arrays, value))
    return copy_plain(value)
