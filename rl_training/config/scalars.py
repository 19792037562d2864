"""What a plain scalar stands for: the core schema of YAML 1.2, with `_` between digits.

PyYAML follows YAML 1.1, in which `1e-4` is text, `007` is octal, `1:30` is ninety and `no` is false.
"""

from __future__ import annotations

import math
import re
from typing import Any

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TRUE = frozenset({"true", "True", "TRUE"})
FALSE = frozenset({"false", "False", "FALSE"})
TRUE_11 = frozenset({"yes", "Yes", "YES", "on", "On", "ON"})
FALSE_11 = frozenset({"no", "No", "NO", "off", "Off", "OFF"})

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_LEADING_ZERO = re.compile(rf"[-+]?0_?{_DIGITS}")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
FLOAT_PATTERN = rf"[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.(?:{_DIGITS})?)?)(?:[eE][-+]?[0-9]+)?"
_FLOAT = re.compile(FLOAT_PATTERN)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

LARGEST_EXACT = 2**53
"""Above this a float no longer holds every whole number."""


def number(text: str) -> int | float | None:
    """Returns the number that `text` spells, or None where it spells none.

    Raises:
        ValueError: It is not finite, or could be meant as text or in another base.
    """
    if _DECIMAL.fullmatch(text):
        if len(text) > 400:
            raise ValueError("expected a number of fewer digits")
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(f'write a number without its leading zero, or "{text}" for text')
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("expected a finite number")
    if _FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError("too large for a number")
        return value
    return None


def untyped(text: str) -> Any:
    """Returns what a plain scalar stands for where nothing is known of what is wanted.

    Raises:
        ValueError: It can be read in two ways (`off`, `007`), or is not finite.
    """
    if text in NULLS:
        return None
    if text in TRUE or text in FALSE:
        return text in TRUE
    if text in TRUE_11 or text in FALSE_11:
        raise ValueError(f'write {"true" if text in TRUE_11 else "false"} for a truth value, or "{text}" for text')
    value = number(text)
    return text if value is None else value


def finite(value: Any) -> Any:
    """Returns `value`.

    Raises:
        ValueError: It is a NaN or an infinity.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def looks_numeric(text: str) -> bool:
    """Tells whether `text` spells a number."""
    return bool(_FLOAT.fullmatch(text))
