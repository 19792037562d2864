"""Records which checkpoint of a run has the best periodic evaluation, and finds it again."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rl_training.errors import CheckpointError, one_line
from rl_training.run_layout import BEST, checkpoint_name
from rl_training.runtime.checkpoint.reading import Checkpoint, open_checkpoint, report_write_errors
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.state_checks import Count
from rl_training.system.durable_files import is_same_file, replace_file


class Best(TypedDict):
    """The content of `best.json`."""

    checkpoint: str
    num_timesteps: Count
    return_mean: FiniteFloat


def best_path(root: Path) -> tuple[Path, float] | None:
    """Returns the path of the best checkpoint, unverified, and its mean return; None if none is recorded.

    Args:
        root: The `checkpoints` directory of a run.

    Raises:
        CheckpointError: The record is damaged.
    """
    path = root / BEST
    if not path.exists():
        return None
    try:
        best = read_json(path, Best)
        name = best["checkpoint"]
        if name != checkpoint_name(best["num_timesteps"]):
            raise NotReadable(f"checkpoint {one_line(name)!r} is not the name of a checkpoint")
    except (OSError, NotReadable) as error:
        raise CheckpointError(
            f"{path} is damaged: {one_line(error)}; remove it to continue without a best checkpoint"
        ) from error
    return root / name, best["return_mean"]


def read_best(root: Path, opened: Checkpoint | None = None) -> tuple[Checkpoint, float] | None:
    """Returns the best checkpoint, verified, and its mean return; None if none is recorded.

    Args:
        root: The `checkpoints` directory of a run.
        opened: A checkpoint that was just opened; shards that both checkpoints share are not hashed again.

    Raises:
        CheckpointError: The record or the checkpoint is damaged.
    """
    best = best_path(root)
    if best is None:
        return None
    path, return_mean = best
    known = {name for name in opened.hashed if is_same_file(path / name, opened.path / name)} if opened else set()
    return open_checkpoint(path, known=known), return_mean


def write_best(root: Path, checkpoint: Checkpoint, return_mean: float) -> None:
    """Records a checkpoint as the best so far.

    Raises:
        CheckpointNotWritten: The directory can't be written.
    """
    best = {
        "checkpoint": checkpoint.path.name,
        "return_mean": float(return_mean),
        "num_timesteps": checkpoint.num_timesteps,
    }
    with report_write_errors(root, root / BEST):
        replace_file(root / BEST, json.dumps(best, allow_nan=False) + "\n")
