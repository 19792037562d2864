"""What is known of a downloaded checkpoint, in a file beside it: whether its run may go on from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint import Checkpoint

DOWNLOAD = "download.json"


@dataclass(frozen=True)
class Download:
    """Where a downloaded checkpoint stands in its run."""

    newest: bool
    """Whether no later one was known when it was downloaded."""
    run_dir: Path
    """The run's directory, which may be on another machine."""


def write_download(checkpoint: Checkpoint, download: Download) -> None:
    """Writes it down beside a checkpoint that was just downloaded."""
    content = {"newest": download.newest, "run_dir": str(download.run_dir)}
    (checkpoint.path.parent / DOWNLOAD).write_text(json.dumps(content), encoding="utf-8")


def read_download(checkpoint: Checkpoint) -> Download | None:
    """Returns what was written down; None for a checkpoint in its own run's directory.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = checkpoint.path.parent / DOWNLOAD
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Download(newest=bool(content["newest"]), run_dir=Path(content["run_dir"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}); download the checkpoint again") from error
