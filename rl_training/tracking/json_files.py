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
    """Writes `value` as `write_bytes` does."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), sync=sync)


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes `data` beside `path` and renames it: a reader sees the old file or the new one, never a part.

    Args:
        path: The file; folders that are missing are made.
        data: Its content.
        sync: Whether it is on disk when this returns. Without that, a power cut may leave an empty file.
    """
    make_directory(path.parent)
    replace_file(path, data, sync=sync)


def write_status(run_dir: Path, status: str, stop_reason: str | None, error: str | None) -> None:
    """Writes how a tracked run ended, FINISHED, FAILED or KILLED; who sends it reads that."""
    metrics = run_dir / METRICS
    if metrics.exists():
        sync_file(metrics)  # which ends with points that no checkpoint stands on
    ended = {"status": status, "stop_reason": stop_reason, "error": error, "time": round(time.time(), 3)}
    write_json(run_dir / STATUS, ended)


def read_json(path: Path, form: Any = dict[str, Any]) -> Any:
    """Returns what the file holds, or None if there is no such file.

    A damaged one, as a power cut may leave it, is logged and counts as missing: what it held is found out again.

    Args:
        path: The file.
        form: One of `run_forms`.
    """
    try:
        return untrusted_json.read_json(path, form)
    except FileNotFoundError:
        return None
    except (OSError, NotReadable) as error:
        logger.warning("%s is damaged, and counts as missing: %s", path, error)
        return None


def read_record(path: Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    """Returns a record that was downloaded from MLflow, of one of `run_forms`.

    Raises:
        TrackingError: It is missing or damaged.
    """
    record: dict[str, Any] | None = read_json(path, form)
    if record is None:
        raise TrackingError(f"{path} is missing or damaged")
    return record


def parse_json(text: str | bytes, what: str, form: Any = dict[str, Any]) -> Any:
    """Returns what a text that MLflow keeps says.

    Raises:
        TrackingError: It is damaged, or of another form.
    """
    try:
        return untrusted_json.parse_json(text, form)
    except NotReadable as error:
        raise TrackingError(f"{what} is damaged: {error}") from error
