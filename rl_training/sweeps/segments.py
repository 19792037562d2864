"""The identity of a trial's run, and the JSON in which segments and records of runs cross processes and machines."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rl_training.errors import one_line
from rl_training.security.untrusted_json import NotReadable, parse_json
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.system.paths import runs_root


def make_trial_uid(sweep_uid: str, key: str) -> str:
    """Returns the `run_uid` of a trial's run, which follows from its sweep and its key within the sweep."""
    return hashlib.sha256(f"{sweep_uid}/{key}".encode()).hexdigest()[:32]


def find_trial_dir(sweep_uid: str, key: str) -> Path:
    """Returns the directory of a trial's run on this machine, whether it exists or not."""
    return runs_root() / f"sweep-{sweep_uid[:8]}-{key}"


def write_segment(segment: Segment) -> str:
    """Returns a segment as one line of JSON."""
    return _write(segment, Segment)


def read_segment(text: bytes | str) -> Segment:
    """Returns the segment in a JSON text.

    Raises:
        NotReadable: The text is not a segment.
    """
    segment: Segment = read_form(parse_json(text), Segment)
    return segment


def write_record(record: RunRecord) -> str:
    """Returns the record of a run as one line of JSON."""
    return _write(record, RunRecord)


def read_record(text: bytes | str) -> RunRecord:
    """Returns the record in a JSON text.

    Raises:
        NotReadable: The text is not a record.
    """
    record: RunRecord = read_form(parse_json(text), RunRecord)
    return record


def to_json(value: Any, form: Any) -> Any:
    """Returns a value of a dataclass as JSON values."""
    return _make_adapter(form).dump_python(value, mode="json")


def read_form(value: Any, form: Any) -> Any:
    """Returns JSON values as a dataclass: numbers that are keys are text in JSON, and tuples are lists.

    Raises:
        NotReadable: The values do not describe one, or one that can't be written again, because it is nested too
            deeply or has a number that is not finite; the message names the first fault.
    """
    try:
        read = _make_adapter(form).validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = "".join(f"{one_line(key)}: " for key in fault["loc"])
        raise NotReadable(f"{where}{one_line(fault['msg'])}") from error
    try:
        _make_adapter(form).validate_python(json.loads(_write(read, form)))
    except (ValueError, RecursionError) as error:
        raise NotReadable(one_line(error)) from error
    return read


def _write(value: Any, form: Any) -> str:
    return json.dumps(to_json(value, form), allow_nan=False)


@cache
def _make_adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
