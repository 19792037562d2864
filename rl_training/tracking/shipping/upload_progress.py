"""How much of a run is in MLflow: kept in `shipped.json`, so that sending goes on where it ended."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import Shipped
from rl_training.tracking.shipping.metrics_reader import MetricsReader, hash_line, read_line_before

logger = logging.getLogger(__name__)


@dataclass
class UploadProgress:
    """What MLflow has of a run."""

    tracking_uri: str
    """Without credentials; another store starts from nothing."""
    run_id: str
    offsets: dict[str, int] = field(default_factory=dict)
    """Bytes sent of each metrics file: the end of a whole line."""
    marks: dict[str, str] = field(default_factory=dict)
    """Of the line that ends at each offset; see `hash_line`. Cursors of earlier versions have none."""
    points: int = 0
    """Metric values sent."""
    checkpoints: list[str] = field(default_factory=list)
    """Fingerprints of the checkpoints sent."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the other files sent, by name."""

    def save(self, run_dir: Path, *, sync: bool) -> None:
        """Writes the cursor beside its file and renames it.

        Args:
            run_dir: The run's directory.
            sync: Whether to bring it to disk. What it says of metrics is checked when it is read, and costs little to
                find out again; checkpoints would be sent again.
        """
        json_files.write_json(run_dir / run_layout.SHIPPED, asdict(self), sync=sync)


def load_progress(run_dir: Path, tracking_uri: str, run_id: str) -> UploadProgress:
    """Returns the cursor of this store and run; one that knows of no metrics sent where its claims do not hold.

    After a power cut the metrics file may end before what was sent of it, and go on there with other lines.
    """
    saved = json_files.read_json(run_dir / run_layout.SHIPPED, Shipped)
    if saved is None or (saved["tracking_uri"], saved["run_id"]) != (tracking_uri, run_id):
        return UploadProgress(tracking_uri, run_id)
    cursor = UploadProgress(**saved)
    if not all(_holds(run_dir / name, offset, cursor.marks.get(name)) for name, offset in cursor.offsets.items()):
        logger.warning("%s: MLflow was sent more than the file holds; what it lacks is looked up there", run_dir)
        cursor.offsets, cursor.marks, cursor.points = {}, {}, 0
    return cursor


def _holds(path: Path, offset: int, mark: str | None) -> bool:
    line = read_line_before(path, offset)
    return line is not None and mark in (None, hash_line(line))


def count_unsent(run_dir: Path, total_timesteps: int, offset: int) -> int:
    """Returns how many points of `metrics.jsonl` MLflow still lacks.

    Args:
        run_dir: The run's directory.
        total_timesteps: The run's length, for thinning.
        offset: Bytes of the file that were sent.
    """
    follower = MetricsReader(run_dir / run_layout.METRICS, total_timesteps)
    count = 0
    while lines := follower.read(most=10_000):
        count += sum(len(line.points) for line in lines if line.end > offset)
    return count
