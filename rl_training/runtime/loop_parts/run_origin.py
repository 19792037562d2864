"""Finds the run that a checkpoint continues: its own run, or a new one that is forked from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.resume_rules import Difference
from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError
from rl_training.run_layout import CHECKPOINTS, CONFIG, METADATA
from rl_training.runtime.checkpoint import Checkpoint, has_later, list_checkpoints
from rl_training.runtime.checkpoint.downloads import read_download
from rl_training.runtime.run_utils import TrainingRun, create_training_run, open_training_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForkOf:
    """A checkpoint whose complete state a new run continues, with other hyperparameters: population-based training.

    The settings in `config.resume_rules.EXPLORABLE` may change, and those that have no effect on what is learned.
    """

    checkpoint: Checkpoint
    lineage: tuple[Mapping[str, Any], ...] = ()
    """The runs that the new run descends from, oldest first, as JSON, for its record."""


def find_own_run(checkpoint: Checkpoint, config: TrainConfig) -> TrainingRun | None:
    """Returns the run whose newest checkpoint this is; None if a later one exists, so that no history is rewritten."""
    if has_later(checkpoint, checkpoint.path.parent):
        return None
    run_dir = checkpoint.path.parent.parent
    download = read_download(checkpoint)
    if download is not None:
        if not download.newest:
            return None
        run_dir = download.run_dir
    run = _open_run(run_dir)
    if run is not None and run.run_uid == checkpoint.run_uid:
        return None if has_later(checkpoint, run.checkpoints) else run
    if download is None:
        return None
    return create_training_run(config.model_copy(update={"run_dir": None}), run_uid=checkpoint.run_uid)


def _open_run(run_dir: Path) -> TrainingRun | None:
    """Returns the run in a directory, if any; after a power cut that emptied its description, by its checkpoints."""
    if not any((run_dir / name).is_file() for name in (METADATA, CONFIG)):
        return None
    try:
        return open_training_run(run_dir)
    except UserError:
        found, _ = list_checkpoints(run_dir / CHECKPOINTS)
        return TrainingRun(run_dir.absolute(), found[0].run_uid) if found else None


def fork_run(
    checkpoint: Checkpoint,
    changes: Sequence[Difference],
    config: TrainConfig,
    renamed: bool,
    lineage: Sequence[Mapping[str, Any]] | None = None,
) -> TrainingRun:
    """Makes a new run that continues from a checkpoint of another one.

    Args:
        checkpoint: The checkpoint.
        changes: The settings that differ from the checkpoint's.
        config: The settings of the new run.
        renamed: Whether the new run has a name of its own.
        lineage: See `ForkOf`; None if the fork is no part of a sweep.
    """
    other = (
        "that run has a later checkpoint, or its directory is not here" if lineage is None else "with equal settings"
    )
    step, why = f"{checkpoint.num_timesteps:,}", "; ".join(map(str, changes)) or other
    logger.warning("a new run, forked from run %s at step %s: %s", checkpoint.run_uid, step, why)
    origin = describe_origin(checkpoint, changes, renamed)
    return create_training_run(config, forked_from={**origin, **({"lineage": list(lineage)} if lineage else {})})


def describe_origin(checkpoint: Checkpoint, changes: Sequence[Difference], renamed: bool) -> dict[str, Any]:
    """Returns the origin of a new run as JSON, for its `metadata.json`."""
    return {
        "run_uid": checkpoint.run_uid,
        "num_timesteps": checkpoint.num_timesteps,
        "policy_sha256": checkpoint.policy_sha256,
        "differences": [str(change) for change in changes],
        "renamed": renamed,
    }
