"""Records which checkpoint of a run has the best periodic evaluation, and finds it again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rl_training.errors import CheckpointError, one_line
from rl_training.run_layout import BEST, checkpoint_name
from rl_training.runtime.checkpoint.reading import (
    Checkpoint,
    list_checkpoints,
    open_checkpoint,
    report_write_errors,
)
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.state_checks import Count
from rl_training.system.durable_files import is_same_file, replace_file

BEST_RETURN = "best_return"
"""The key in a manifest's `extra` of the mean return with which a checkpoint was the best so far; None if it was not.
Checkpoints of version 0.1 have no such key."""


@dataclass(frozen=True)
class FoundBest:
    """The best checkpoint of a run that is resumed."""

    checkpoint: Checkpoint | None
    return_mean: float | None
    """The mean return of the best periodic evaluation so far, whose checkpoint may be lost; None before the first."""
    lost: str = ""
    """Why the best checkpoint is missing; empty if nothing is."""


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


def find_best(root: Path, opened: Checkpoint, best_return: float | None, *, evaluated_here: bool) -> FoundBest:
    """Finds the best checkpoint of a run that is resumed, and records it again if its record is lost or outdated.

    Args:
        root: The `checkpoints` directory of the run.
        opened: The checkpoint from which the run is resumed, in `root`.
        best_return: The best mean return according to `opened`.
        evaluated_here: Whether the policy of `opened` itself was evaluated.

    Raises:
        CheckpointNotWritten: The directory can't be written.
    """
    try:
        recorded, why = read_best(root, opened), f"{root / BEST} is missing"
    except CheckpointError as error:
        recorded, why = None, str(error)
    if best_return is None or (recorded is not None and recorded[1] >= best_return):
        return FoundBest(None, None) if recorded is None else FoundBest(*recorded)
    # The run ended between a checkpoint and its record, or the record is lost.
    unmarked = BEST_RETURN not in opened.manifest.extra and recorded is not None and evaluated_here
    best = opened if unmarked else _find_marked(root, opened, best_return)
    if best is None:
        why = why if recorded is None else f"{root / BEST} names another one, with a mean return of {recorded[1]:g}"
        return FoundBest(None, best_return, why)
    write_best(root, best, best_return)
    return FoundBest(best, best_return)


def _find_marked(root: Path, opened: Checkpoint, best_return: float) -> Checkpoint | None:
    """Returns the newest good checkpoint of the run up to `opened` that was saved as the best with this mean return."""
    found, _ = list_checkpoints(root)
    for checkpoint in found:
        is_earlier = checkpoint.run_uid == opened.run_uid and checkpoint.num_timesteps <= opened.num_timesteps
        if is_earlier and checkpoint.manifest.extra.get(BEST_RETURN) == best_return:
            with suppress(CheckpointError):
                return open_checkpoint(checkpoint.path)
    return None
