"""What a single value stands for: the core schema of YAML 1.2, with `_` between digits.

PyYAML follows YAML 1.1, in which `1e-4` is text, `007` is octal, `1:30` is ninety and `no` is false. Each reader here
returns the value where one of its type is wanted, and raises a `ValueError` with what was expected (or with no words).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.config.document import Scalar
from rl_training.security.secrets import KINDS, REFERENCE

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TRUE = frozenset({"true", "True", "TRUE"})
FALSE = frozenset({"false", "False", "FALSE"})
TRUE_11 = frozenset({"yes", "Yes", "YES", "on", "On", "ON"})
FALSE_11 = frozenset({"no", "No", "NO", "off", "Off", "OFF"})

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
FLOAT_PATTERN = rf"[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.(?:{_DIGITS})?)?)(?:[eE][-+]?[0-9]+)?"
_FLOAT = re.compile(FLOAT_PATTERN)
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_LEADING_ZERO = re.compile(rf"[-+]?0_?{_DIGITS}")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

LARGEST_EXACT = 2**53
"""Above this a float no longer holds every whole number."""

MOST_DIGITS = 300


def number(text: str) -> int | float | None:
    """Returns the number that `text` spells, or None where it spells none.

    Raises:
        ValueError: It is not finite, or could be meant as text or in another base.
    """
    if _DECIMAL.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > MOST_DIGITS:
            raise ValueError(f"expected a number of at most {MOST_DIGITS} digits")
        return int(text, 0) if _BASED.fullmatch(text) else int(text)
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(f'expected a number without a leading zero, or "{text}" in quotes for text')
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("expected a finite number")
    if _FLOAT.fullmatch(text):
        value = float(text)
        if abs(value) == float("inf"):
            raise ValueError("expected a number below 1.8e308")
        return value
    return None


def check_unicode(node: Scalar) -> None:
    """Refuses what becomes of bytes that are no UTF-8 on a command line: half a character, which can't be written.

    Raises:
        ValueError: The text of `node` has one.
    """
    if isinstance(node.value, str) and any("\ud800" <= character <= "\udfff" for character in node.value):
        raise ValueError("expected text in UTF-8")


def is_null(node: Scalar) -> bool:
    """Tells whether `node` stands for nothing."""
    return node.value is None or (node.style == "plain" and node.value in NULLS)


def untyped(node: Scalar) -> Any:
    """Returns the value of `node` where nothing is known of what is wanted (in `env_kwargs`).

    Raises:
        ValueError: It can be read in two ways (`off`, `007`), is not finite, or refers to an unknown kind of secret.
    """
    text = node.value
    if isinstance(text, str) and any(kind not in KINDS for kind, _ in REFERENCE.findall(text)):
        raise ValueError("expected a reference of the kind ${env:NAME} or ${prefect:BLOCK}")
    if node.style != "plain":
        return text
    if text in NULLS:
        return None
    if text in TRUE or text in FALSE:
        return text in TRUE
    if text in TRUE_11 or text in FALSE_11:
        word = "true" if text in TRUE_11 else "false"
        raise ValueError(f'expected {word} for a truth value, or "{text}" in quotes for text')
    value = number(text)
    return text if value is None else value


def _text(node: Scalar) -> str:
    if is_null(node) or isinstance(node.value, bool | float):
        raise ValueError
    text = str(node.value)
    if REFERENCE.search(text):
        raise ValueError("expected plain text; secrets are resolved in env_kwargs and in wrappers' kwargs only")
    return text


def _path(node: Scalar) -> Path:
    text = _text(node)
    if not text or "\0" in text:
        raise ValueError
    return Path(text)


def _number(node: Scalar) -> int | float:
    value = node.value
    if isinstance(value, str):
        if node.style == "quoted":
            raise ValueError("expected a number, without quotes" if _FLOAT.fullmatch(value) else "")
        value = number(value)
    if value is None or isinstance(value, bool):
        raise ValueError
    return value  # type: ignore[no-any-return]


def _integer(node: Scalar) -> int:
    value = _number(node)
    if isinstance(value, float) and (not value.is_integer() or abs(value) > LARGEST_EXACT):
        raise ValueError
    return int(value)


def _float(node: Scalar) -> float:
    try:
        return float(_number(node))
    except OverflowError:
        raise ValueError("expected a number below 1.8e308") from None


def _switch(node: Scalar) -> bool:
    if isinstance(node.value, bool):
        return node.value
    if isinstance(node.value, str) and node.style != "quoted":
        if node.value in TRUE | TRUE_11:
            return True
        if node.value in FALSE | FALSE_11:
            return False
    raise ValueError


READERS: Mapping[type, Callable[[Scalar], Any]] = {bool: _switch, int: _integer, float: _float, str: _text, Path: _path}
"""How a value of each type is read."""

EXPECTED: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
"""What to call each type in a message."""
