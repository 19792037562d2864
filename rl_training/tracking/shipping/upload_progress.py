"""Records in `shipped.json` how much of a run is in MLflow, so that sending can continue after any end."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import Shipped
from rl_training.tracking.shipping.metrics_reader import MetricsReader, is_line_before

logger = logging.getLogger(__name__)


@dataclass
class UploadProgress:
    """Records how much of a run is in MLflow."""

    tracking_uri: str
    """The store, without credentials; in another store nothing is sent yet."""
    run_id: str
    offsets: dict[str, int] = field(default_factory=dict)
    """Bytes sent of each metrics file, up to the end of a line."""
    marks: dict[str, str] = field(default_factory=dict)
    """Hash of the line that ends at each offset, from `hash_line`; files of earlier versions have none."""
    points: int = 0
    """Number of metric values sent."""
    checkpoints: list[str] = field(default_factory=list)
    """Fingerprints of the checkpoints sent."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the other files sent, by name."""

    def save(self, run_dir: Path, *, sync: bool) -> None:
        """Replaces `shipped.json`.

        Args:
            run_dir: The run's directory.
            sync: Whether to flush the file to disk. Progress with metrics need not be flushed: it is checked when the
                file is read, and cheap to find out again. Checkpoints would be sent again.
        """
        json_files.write_json(run_dir / run_layout.SHIPPED, asdict(self), sync=sync)


def load_progress(run_dir: Path, tracking_uri: str, run_id: str) -> UploadProgress:
    """Returns the progress with this store and run.

    After a power cut the metrics file may end before the recorded offset, or have other lines there. Then the progress
    counts no metrics as sent.
    """
    saved = json_files.read_json(run_dir / run_layout.SHIPPED, Shipped)
    if saved is None or (saved["tracking_uri"], saved["run_id"]) != (tracking_uri, run_id):
        return UploadProgress(tracking_uri, run_id)
    progress = UploadProgress(**saved)
    if not all(
        is_line_before(run_dir / name, offset, progress.marks.get(name)) for name, offset in progress.offsets.items()
    ):
        logger.warning("%s: the metrics file lost lines that were sent; MLflow is asked which points it has", run_dir)
        progress.offsets, progress.marks, progress.points = {}, {}, 0
    return progress


def count_unsent(run_dir: Path, total_timesteps: int, offset: int) -> int:
    """Returns the number of points in `metrics.jsonl` that are not in MLflow yet.

    Args:
        run_dir: The run's directory.
        total_timesteps: The run's length in steps, for the downsampling.
        offset: Number of bytes of the file that were sent.
    """
    reader = MetricsReader(run_dir / run_layout.METRICS, total_timesteps)
    count = 0
    while lines := reader.read(most=10_000):
        count += sum(len(line.points) for line in lines if line.end > offset)
    return count
