"""Reads JSON that anyone may have written: its size is bounded before it is parsed, and its type is checked."""

from __future__ import annotations

import json
import os
import stat
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from rl_training.errors import describe_fault, one_line

MAX_BYTES = 16 * 2**20
ROOM = 48 * 2**20
"""The bytes of memory that the values of a text may take beyond twice its size."""
_CONTAINER, _ITEM = 240, 60  # the memory that each takes, in bytes


class NotReadable(ValueError):
    """A text is too large, not JSON, or not of the expected type; the message says so on one line."""


def open_plain_file(path: Path) -> BufferedReader:
    """Opens a regular file for reading; never follows a link or opens a pipe or device.

    Raises:
        OSError: The file is missing or not a regular file.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path.name} is a link or not a regular file")
    return path.open("rb")


def read_json(path: Path, form: Any = dict[str, Any]) -> Any:
    """Returns the value in a JSON file.

    Args:
        path: A regular file.
        form: The expected type, which pydantic checks.

    Raises:
        FileNotFoundError: The file is missing.
        OSError: The file can't be read.
        NotReadable: The file is too large, not JSON, or not of that type.
    """
    with open_plain_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise NotReadable(f"it has more than {MAX_BYTES:,} bytes")
        return parse_json(file.read(), form)


def parse_json(data: bytes | str, form: Any = dict[str, Any]) -> Any:
    """Returns the value that a JSON text in UTF-8 describes.

    Raises:
        NotReadable: The text is not strict JSON, describes more values than its size allows, or is not of that type.
    """
    try:
        data = data.encode() if isinstance(data, str) else data
        _require_small(data)
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which no file could hold
    except json.JSONDecodeError as error:
        raise NotReadable(f"it is not JSON: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadable(one_line(error) or type(error).__name__) from error
    try:
        return _make_adapter(form).validate_python(value, strict=True)
    except ValidationError as error:
        raise NotReadable(describe_fault(error.errors()[0])) from error


def _require_small(data: bytes) -> None:
    """Refuses a text whose values could take too much memory, by an upper bound, before any of them is made."""
    opened, items = data.count(b"[") + data.count(b"{"), data.count(b",") + data.count(b":")
    if opened * _CONTAINER + items * _ITEM > 2 * len(data) + ROOM:
        raise NotReadable(f"it has {opened + items:,} values in {len(data):,} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@cache
def _make_adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
