"""Converts settings and metrics, which may contain anything, to names and values that MLflow accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_KEY = 250
MAX_PARAM = 6_000
MAX_TAG = 8_000
"""MLflow's limits on the length of names, parameters and tags, in characters."""

SHORTENED = " ... [shortened; config.yaml among the artifacts has all of it]"
"""The end of a value that was cut."""

_ILLEGAL = re.compile(r"[^\w\-. /]", re.ASCII)
_ODD_PATH = re.compile(r"(^|/)(\.{0,2}(/|$))+")


def make_legal_name(name: str) -> str:
    """Returns `name` with `_` for everything that MLflow does not allow in names of metrics, parameters and tags."""
    return _ODD_PATH.sub(r"\1_", _ILLEGAL.sub("_", name))[:MAX_KEY]


def shorten(value: str, limit: int) -> str:
    """Returns `value`, cut to `limit` characters and marked as shortened if it is longer."""
    return value if len(value) <= limit else value[: limit - len(SHORTENED)] + SHORTENED


def flatten(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as MLflow parameters: dotted names, values as text of at most 6,000 characters.

    Strings are kept; other values are written as JSON. Names that become equal because of characters that MLflow does
    not allow get a number.
    """
    params: dict[str, str] = {}
    for path, value in _iterate_leaves(settings, ""):
        name, count = make_legal_name(path), 1
        while name in params:
            count += 1
            name = make_legal_name(f"{path[: MAX_KEY - 5]}_{count}")
        params[name] = shorten(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAM)
    return params


def _iterate_leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _iterate_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
