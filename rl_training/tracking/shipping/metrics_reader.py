"""Reads a metrics file as another process appends to it, and downsamples the points for MLflow.

MLflow gets at most about 2,000 points of each metric, and every evaluation. Which points are kept does not depend on
later lines, so a run that is training and its finished file give the same points.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.security.untrusted_json import MAX_BYTES, NotReadable, parse_json
from rl_training.tracking.mlflow_names import make_legal_name
from rl_training.tracking.record_schemas import MetricLine

logger = logging.getLogger(__name__)

LONGEST_LINE = 2**20
"""How many bytes of a metrics file are searched for the beginning of a line."""

BUCKETS = 2_000
"""Number of equal buckets that a run's steps are divided into; of each metric, the first point in a bucket is kept."""

EVALUATION_EVENTS = frozenset({"eval", "heldout"})
"""Events whose metrics are all kept."""


@dataclass(frozen=True)
class Point:
    """One value of one metric, in the form of MLflow."""

    key: str
    value: float
    timestamp: int
    """Milliseconds since 1970, from the file: if a point is sent again, MLflow stores it once."""
    step: int


@dataclass(frozen=True)
class Line:
    """One line of a metrics file."""

    end: int
    """Bytes from the start of the file to the end of this line."""
    content: dict[str, Any]
    points: list[Point]
    """The points that are kept."""


class Downsampler:
    """Decides which metrics of each line are kept; lines must come in the file's order.

    Args:
        total_timesteps: The run's length in steps; a bucket is `total_timesteps / 2000` steps wide.
    """

    def __init__(self, total_timesteps: int) -> None:
        self._total = total_timesteps
        self._seen: dict[str, set[int]] = {}

    def keep(self, event: str, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of this line that are kept, and remembers their buckets."""
        if event in EVALUATION_EVENTS:
            return dict(metrics)
        bucket = step * BUCKETS // self._total
        kept = {}
        for key, value in metrics.items():
            seen = self._seen.setdefault(key, set())
            if bucket not in seen:
                seen.add(bucket)
                kept[key] = value
        return kept


class LineReader:
    """Reads complete lines of a metrics file as they are appended.

    Args:
        path: The file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Bytes read so far, always up to the end of a line."""
        self.mark = ""
        """Hash of the last line read, from `hash_line`."""
        self.count = 0
        """Number of lines read so far, damaged ones included."""

    def read_lines(self) -> Iterator[dict[str, Any]]:
        """Yields the content of each complete line from `offset` on; a damaged line is logged and skipped."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while (raw := file.readline(MAX_BYTES)).endswith(b"\n"):
                self.offset += len(raw)
                self.mark = hash_line(raw)
                self.count += 1
                try:
                    content = parse_json(raw, MetricLine)
                except NotReadable as error:
                    logger.warning("%s: a line is skipped because it is no line of metrics: %s", self.path, error)
                    continue
                yield content


class MetricsReader(LineReader):
    """Reads a metrics file for MLflow.

    Args:
        path: The file, which need not exist yet.
        total_timesteps: The run's length in steps, for the downsampling.
    """

    def __init__(self, path: Path, total_timesteps: int) -> None:
        super().__init__(path)
        self._downsampler = Downsampler(total_timesteps)

    def read(self, most: int) -> list[Line]:
        """Returns the next lines, up to the line with which `most` points are reached."""
        lines: list[Line] = []
        count = 0
        for content in self.read_lines():
            points = self._make_points(content)
            count += len(points)
            lines.append(Line(self.offset, content, points))
            if count >= most:
                break
        return lines

    def _make_points(self, content: dict[str, Any]) -> list[Point]:
        step, timestamp = content["step"], round(content["time"] * 1000)
        kept = self._downsampler.keep(content["event"], step, content["metrics"])
        return [Point(make_legal_name(key), value, timestamp, step) for key, value in kept.items()]


def hash_line(line: bytes) -> str:
    """Returns a hash that tells a line of a metrics file from a different line at the same place."""
    return hashlib.sha256(line).hexdigest()[:16]


def is_line_before(path: Path, offset: int, mark: str | None) -> bool:
    """Returns whether a line of a metrics file ends at `offset`, and has this hash unless it is None."""
    line = read_line_before(path, offset)
    return line is not None and mark in (None, hash_line(line))


def read_line_before(path: Path, offset: int) -> bytes | None:
    """Returns the line of a metrics file that ends at `offset`, or None if no line ends there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset - LONGEST_LINE))
            before = file.read(min(offset, LONGEST_LINE))
    except FileNotFoundError:
        return None
    if len(before) < min(offset, LONGEST_LINE) or not before.endswith(b"\n"):
        return None
    return before[before.rfind(b"\n", 0, -1) + 1 :]
