"""Following a file of JSON lines that another process appends to."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.security.untrusted_json import MAX_BYTES, NotReadable, parse_json
from rl_training.tracking.mlflow_names import make_legal_name
from rl_training.tracking.record_schemas import MetricLine
from rl_training.tracking.shipping.thinning import Downsampler

logger = logging.getLogger(__name__)

LONGEST_LINE = 2**20
"""Bytes of a metrics file that are searched for the beginning of a line."""


@dataclass(frozen=True)
class Point:
    """One value of one metric, as MLflow takes it."""

    key: str
    value: float
    timestamp: int
    """Milliseconds since 1970, from the file: sending a point again with its own time makes no second one."""
    step: int


@dataclass(frozen=True)
class Line:
    """One line of a metrics file."""

    end: int
    """Bytes from the file's start to behind this line."""
    content: dict[str, Any]
    points: list[Point]
    """What the thinning keeps of it."""


class MetricsReader:
    """Reads the whole lines of a metrics file as they come; a last line without its end is left for later.

    Args:
        path: The file; it need not be there yet.
        total_timesteps: The run's length, for thinning.
    """

    def __init__(self, path: Path, total_timesteps: int) -> None:
        self.path = path
        self.offset = 0
        """Bytes read: always the end of a whole line."""
        self.mark = ""
        """Of the last line read; see `hash_line`."""
        self._thinning = Downsampler(total_timesteps)

    def read(self, most: int) -> list[Line]:
        """Returns the next lines, until they hold `most` points that are kept or there are no more."""
        if not self.path.exists():
            return []
        lines: list[Line] = []
        count = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while count < most and (raw := file.readline(MAX_BYTES)).endswith(b"\n"):
                self.offset += len(raw)
                self.mark = hash_line(raw)
                try:
                    content = parse_json(raw, MetricLine)
                except NotReadable as error:
                    logger.warning("%s: a line is left out, since it is no line of metrics: %s", self.path, error)
                    continue
                points = self._points(content)
                count += len(points)
                lines.append(Line(self.offset, content, points))
        return lines

    def _points(self, content: dict[str, Any]) -> list[Point]:
        step, timestamp = content["step"], round(content["time"] * 1000)
        kept = self._thinning.keep(content["event"], step, content["metrics"])
        return [Point(make_legal_name(key), value, timestamp, step) for key, value in kept.items()]


def hash_line(line: bytes) -> str:
    """Returns what tells a line of a metrics file from another one in its place."""
    return hashlib.sha256(line).hexdigest()[:16]


def read_line_before(path: Path, offset: int) -> bytes | None:
    """Returns the line of a metrics file that ends at an offset; None if no line ends there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset - LONGEST_LINE))
            before = file.read(min(offset, LONGEST_LINE))
    except FileNotFoundError:
        return None
    if len(before) < min(offset, LONGEST_LINE) or not before.endswith(b"\n"):
        return None
    return before[before.rfind(b"\n", 0, -1) + 1 :]
