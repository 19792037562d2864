"""How much of a run is in MLflow: kept in `shipped.json`, so that sending goes on where it ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl_training.tracking import run_files
from rl_training.tracking.follow import Follower


@dataclass
class Cursor:
    """What MLflow has of a run."""

    tracking_uri: str
    """Without credentials; another store starts from nothing."""
    run_id: str
    offsets: dict[str, int] = field(default_factory=dict)
    """Bytes sent of each metrics file: the end of a whole line."""
    points: int = 0
    """Metric values sent."""
    checkpoints: list[str] = field(default_factory=list)
    """Fingerprints of the checkpoints sent."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the other files sent, by name."""

    def save(self, run_dir: Path) -> None:
        """Writes the cursor beside its file and renames it."""
        run_files.write_json(run_dir / run_files.SHIPPED, asdict(self))


def load_cursor(run_dir: Path, tracking_uri: str, run_id: str) -> Cursor:
    """Returns the cursor of this store and run; an empty one where there is none."""
    saved = run_files.read_json(run_dir / run_files.SHIPPED)
    if saved is not None and (saved["tracking_uri"], saved["run_id"]) == (tracking_uri, run_id):
        return Cursor(**saved)
    return Cursor(tracking_uri, run_id)


def count_unsent(run_dir: Path, total_timesteps: int, offset: int) -> int:
    """Returns how many points of `metrics.jsonl` MLflow still lacks.

    Args:
        run_dir: The run's directory.
        total_timesteps: The run's length, for thinning.
        offset: Bytes of the file that were sent.
    """
    follower = Follower(run_dir / run_files.METRICS, total_timesteps)
    count = 0
    while lines := follower.read(most=10_000):
        count += sum(len(line.points) for line in lines if line.end > offset)
    return count
