"""Reads and writes the JSON files of a run directory."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import TrackingError
from rl_training.run_layout import METRICS, STATUS
from rl_training.security import untrusted_json
from rl_training.security.untrusted_json import NotReadable
from rl_training.system.durable_files import make_directory, replace_file, sync_file

logger = logging.getLogger(__name__)


def write_json(path: Path, value: Mapping[str, Any], *, sync: bool = True) -> None:
    """Writes a JSON file like `write_bytes`."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), sync=sync)


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replaces a file atomically: a reader sees either the old or the new content.

    Args:
        path: The file; missing folders are created.
        data: The content.
        sync: Whether to flush the file to disk. Otherwise a power cut may leave an empty file.
    """
    make_directory(path.parent)
    replace_file(path, data, sync=sync)


def write_status(run_dir: Path, status: str, stop_reason: str | None, error: str | None) -> None:
    """Records in `status.json` how a tracked run ended, for the process that sends the run to MLflow."""
    metrics = run_dir / METRICS
    if metrics.exists():
        sync_file(metrics)  # no checkpoint has flushed its last lines
    ended = {"status": status, "stop_reason": stop_reason, "error": error, "time": round(time.time(), 3)}
    write_json(run_dir / STATUS, ended)


def read_json(path: Path, form: Any = dict[str, Any]) -> Any:
    """Returns the content of a JSON file, or None if it does not exist.

    A damaged file, which a power cut may leave, is logged and treated as missing, because its content can be found out
    again.

    Args:
        path: The file.
        form: The type of the content, one of `record_schemas`.
    """
    try:
        return untrusted_json.read_json(path, form)
    except FileNotFoundError:
        return None
    except (OSError, NotReadable) as error:
        logger.warning("%s is damaged and treated as missing: %s", path, error)
        return None


def read_record(path: Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a record that was downloaded from MLflow.

    Raises:
        TrackingError: The record is missing or damaged.
    """
    record: dict[str, Any] | None = read_json(path, form)
    if record is None:
        raise TrackingError(f"{path} is missing or damaged")
    return record


def parse_json(text: str | bytes, what: str, form: Any = dict[str, Any]) -> Any:
    """Returns the content of a JSON text that MLflow stores, such as the value of a tag.

    Args:
        text: The text.
        what: A name of the text for the error message.
        form: The type of the content, one of `record_schemas`.

    Raises:
        TrackingError: The text is damaged or has another form.
    """
    try:
        return untrusted_json.parse_json(text, form)
    except NotReadable as error:
        raise TrackingError(f"{what} is damaged: {error}") from error
