"""Making names and values that MLflow takes, from settings and metrics that may hold anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_KEY = 250
MAX_PARAM = 6_000
MAX_TAG = 8_000
"""MLflow's own limits, in characters."""

SHORTENED = " ... [shortened; config.yaml among the artifacts has all of it]"

_ILLEGAL = re.compile(r"[^\w\-. /]", re.ASCII)
_ODD_PATH = re.compile(r"(^|/)(\.{0,2}(/|$))+")


def make_legal_name(name: str) -> str:
    """Returns `name` with what MLflow refuses in the names of metrics, parameters and tags replaced by `_`."""
    return _ODD_PATH.sub(r"\1_", _ILLEGAL.sub("_", name))[:MAX_KEY]


def shorten(value: str, limit: int) -> str:
    """Returns `value`, cut to `limit` characters with a note where it is longer."""
    return value if len(value) <= limit else value[: limit - len(SHORTENED)] + SHORTENED


def flatten(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as MLflow parameters: dotted names, values as text of at most 6,000 characters.

    Text stays as it is; all else is written as JSON. Names that differ only in what MLflow refuses get a number.
    """
    params: dict[str, str] = {}
    for path, value in _leaves(settings, ""):
        name, count = make_legal_name(path), 1
        while name in params:
            count += 1
            name = make_legal_name(f"{path[: MAX_KEY - 5]}_{count}")
        params[name] = shorten(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAM)
    return params


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
