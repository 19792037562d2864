"""The files of a run directory that tracking reads and writes, and how they are written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.runtime.job_lock import SHIPPER_LOCK

METRICS = "metrics.jsonl"
"""Every metric of the run: the truth, of which MLflow holds a thinned copy."""
SYSTEM_METRICS = "system_metrics.jsonl"
"""Load of the machine, where asked for; same form as `METRICS`."""
TRACKING = "tracking.json"
"""What the shipper must know of the run: experiment, name, parameters, tags."""
MLFLOW = "mlflow.json"
"""Where the run is in MLflow."""
SHIPPED = "shipped.json"
"""How much of the run is in MLflow."""
STATUS = "status.json"
"""How the run ended; not there while it goes on."""
ARTIFACTS = "artifacts"
"""Every file in here goes to MLflow under the same name."""
HELD_OUT = "evaluation.json"
"""Among the artifacts: the held-out evaluation with all its episodes."""
EPISODE = "evaluation_episode.gif"
"""Among the artifacts: the first of those episodes, as a film."""
CHECKPOINTS = "checkpoints"
LOCK = SHIPPER_LOCK
LOG = "shipper.log"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes `value` so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text` beside `path` and renames it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` beside `path` and renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_bytes(data)
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the file's mapping, or None where there is no such file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    value: dict[str, Any] = json.loads(text)
    return value
