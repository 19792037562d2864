"""A reader of JSON files that anyone may have written: bounded before it is parsed, and of a form that is stated."""

from __future__ import annotations

import json
import os
import stat
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from rl_training.errors import one_line

MOST_BYTES = 16 * 2**20
ROOM = 48 * 2**20
"""Bytes that the values of a text may take beside twice its size."""
_CONTAINER, _ITEM = 240, 60


class NotReadable(ValueError):
    """A text is too large, no JSON, or of another form; the message says what is wrong on one line."""


def open_plain_file(path: Path) -> BufferedReader:
    """Opens a regular file for reading; a link, pipe or device is refused, not followed.

    Raises:
        OSError: It is missing or no regular file.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path.name} is a link or no regular file")
    return path.open("rb")


def read_json(path: Path, form: Any = dict[str, Any]) -> Any:
    """Returns what a file of JSON holds.

    Args:
        path: A regular file.
        form: A type that pydantic knows.

    Raises:
        FileNotFoundError: It is missing.
        OSError: It can't be read.
        NotReadable: It is too large, no JSON, or of another form.
    """
    with open_plain_file(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise NotReadable(f"it has more than {MOST_BYTES:,} bytes")
        return parse_json(file.read(), form)


def parse_json(data: bytes | str, form: Any = dict[str, Any]) -> Any:
    """Returns the value that a text in UTF-8 describes.

    Raises:
        NotReadable: It is no strict JSON, describes more than a text of its size should, or is none of that form.
    """
    try:
        data = data.encode() if isinstance(data, str) else data
        _require_small(data)
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half a character could be written nowhere
    except (ValueError, RecursionError) as error:
        raise NotReadable(one_line(error) or type(error).__name__) from error
    try:
        return _adapter(form).validate_python(value, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = "".join(f"{one_line(key)}: " for key in fault["loc"])
        raise NotReadable(f"{where}{one_line(fault['msg'])}") from error


def _require_small(data: bytes) -> None:
    """Estimates from above what the values take, before there are any."""
    opened, items = data.count(b"[") + data.count(b"{"), data.count(b",") + data.count(b":")
    if opened * _CONTAINER + items * _ITEM > 2 * len(data) + ROOM:
        raise NotReadable(f"it has {opened + items:,} values in {len(data):,} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
