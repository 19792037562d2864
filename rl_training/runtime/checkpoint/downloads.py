"""Records where downloaded checkpoints come from, and brings checkpoints from elsewhere into a run directory."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from rl_training.errors import CheckpointError
from rl_training.run_layout import checkpoint_name
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint, staging
from rl_training.runtime.checkpoint.manifest import MANIFEST
from rl_training.runtime.checkpoint.reading import report_write_errors
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.system.durable_files import is_same_file, link_or_copy

logger = logging.getLogger(__name__)

DOWNLOAD = "download.json"


@dataclass(frozen=True)
class Download:
    """The origin of a downloaded checkpoint."""

    newest: bool
    """Whether it was the newest checkpoint of its run when it was downloaded."""
    run_dir: Path
    """The directory of the run, which may be on another machine."""


class DownloadForm(TypedDict):
    """The content of `download.json`."""

    newest: bool
    run_dir: str


def write_download(checkpoint: Checkpoint, download: Download) -> None:
    """Records the origin of a checkpoint that was just downloaded, beside it."""
    content = {"newest": download.newest, "run_dir": str(download.run_dir)}
    (checkpoint.path.parent / DOWNLOAD).write_text(json.dumps(content), encoding="utf-8")


def read_download(checkpoint: Checkpoint) -> Download | None:
    """Returns the origin of a downloaded checkpoint; None for a checkpoint in the directory of its own run.

    Raises:
        CheckpointError: The record is damaged.
    """
    path = checkpoint.path.parent / DOWNLOAD
    if not path.is_file():
        return None
    try:
        content = read_json(path, DownloadForm)
        return Download(newest=content["newest"], run_dir=Path(content["run_dir"]))
    except (OSError, NotReadable) as error:
        raise CheckpointError(f"{path} is damaged ({error}); download the checkpoint again") from error


def import_checkpoint(checkpoint: Checkpoint, root: Path) -> Checkpoint:
    """Brings a checkpoint into the directory of the run that continues from it.

    From then on, the run can be resumed on this machine. Files are linked, or copied if the file system has no hard
    links; a damaged checkpoint in the way is set aside.

    Args:
        checkpoint: The verified checkpoint.
        root: The `checkpoints` directory of the run.

    Returns:
        The checkpoint in `root`.

    Raises:
        CheckpointNotWritten: The directory can't be written.
    """
    target = root / checkpoint_name(checkpoint.num_timesteps)
    if is_same_file(checkpoint.path, target):
        return checkpoint
    with report_write_errors(root, target):
        staging.prepare(root)
        if target.exists():
            try:
                open_checkpoint(target)
            except CheckpointError as error:
                logger.warning("%s; set aside as %s", error, staging.set_aside(target))
        with staging.stage(target) as staged:
            for name in (*checkpoint.manifest.files, MANIFEST):
                link_or_copy(checkpoint.path / name, staged / name, sync=True)
            staging.publish(staged, target)
    return Checkpoint(target, checkpoint.manifest)
