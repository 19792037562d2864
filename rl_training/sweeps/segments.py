"""The identity of a trial's run, and the JSON in which segments, records and steps are sent and stored."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rl_training.errors import describe_fault, one_line
from rl_training.security.untrusted_json import NotReadable, parse_json
from rl_training.system.paths import home, runs_root

Form = TypeVar("Form")


def make_trial_uid(sweep_uid: str, key: str) -> str:
    """Returns the `run_uid` of a trial's run, which follows from its sweep and its key within the sweep."""
    return hashlib.sha256(f"{sweep_uid}/{key}".encode()).hexdigest()[:32]


def find_trial_dir(sweep_uid: str, key: str) -> Path:
    """Returns the directory of a trial's run on this machine, whether it exists or not."""
    return runs_root() / f"sweep-{sweep_uid[:8]}-{key}"


def find_sweep_dir(sweep_uid: str) -> Path:
    """Returns the folder of a sweep's files on this machine, which may not exist yet."""
    return home() / "sweeps" / sweep_uid[:8]


def to_text(value: Any) -> str:
    """Returns a segment, a record or a step as one line of JSON."""
    return json.dumps(to_json(value), allow_nan=False)


def from_text(text: bytes | str, form: type[Form]) -> Form:
    """Returns the segment, the record or the step in a JSON text.

    Raises:
        NotReadable: The text is none; see `from_json`.
    """
    return from_json(parse_json(text), form)


def to_json(value: Any) -> Any:
    """Returns a segment, a record or a step as JSON values."""
    form: Any = type(value)
    return _make_adapter(form).dump_python(value, mode="json")


def from_json(value: Any, form: type[Form]) -> Form:
    """Returns the segment, the record or the step in JSON values, where keys are text, and tuples are lists.

    Raises:
        NotReadable: The values do not describe one, or one that can't be written again, because it is nested too
            deeply or has a number that is not finite; the message names the first fault.
    """
    kind: Any = form
    adapter = _make_adapter(kind)
    try:
        read: Form = adapter.validate_python(value)
    except ValidationError as error:
        raise NotReadable(describe_fault(error.errors()[0])) from error
    try:
        adapter.validate_python(json.loads(to_text(read)))
    except (ValueError, RecursionError) as error:
        raise NotReadable(one_line(error)) from error
    return read


@cache
def _make_adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
