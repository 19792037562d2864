"""Following a file of JSON lines that another process appends to."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.tracking.naming import legal_name
from rl_training.tracking.thinning import Thinning

logger = logging.getLogger(__name__)


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


class Follower:
    """Reads the whole lines of a metrics file as they come; a last line without its end is left for later.

    Args:
        path: The file; it need not be there yet.
        total_timesteps: The run's length, for thinning.
    """

    def __init__(self, path: Path, total_timesteps: int) -> None:
        self.path = path
        self.offset = 0
        """Bytes read: always the end of a whole line."""
        self._thinning = Thinning(total_timesteps)

    def read(self, most: int) -> list[Line]:
        """Returns the next lines, until they hold `most` points that are kept or there are no more."""
        if not self.path.exists():
            return []
        lines: list[Line] = []
        count = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while count < most and (raw := file.readline()).endswith(b"\n"):
                self.offset += len(raw)
                try:
                    content = json.loads(raw)
                except ValueError:
                    logger.warning("%s: a line that is no JSON is left out: %.80r", self.path, raw)
                    continue
                points = self._points(content)
                count += len(points)
                lines.append(Line(self.offset, content, points))
        return lines

    def _points(self, content: dict[str, Any]) -> list[Point]:
        step, timestamp = content["step"], round(content["time"] * 1000)
        kept = self._thinning.keep(content["event"], step, content["metrics"])
        return [Point(legal_name(key), value, timestamp, step) for key, value in kept.items()]
