"""Keeps the checkpoints at which a member of a population paused, while other members may be forked from them.

A generation of population-based training forks the checkpoints at which members paused, and the members themselves may
continue before their forks have begun, at most to the end of the generation. So the two newest pauses are kept,
whatever `checkpoint.keep_last` is.
"""

from __future__ import annotations

import json
from pathlib import Path

from typing_extensions import TypedDict

from rl_training.errors import CheckpointError, one_line
from rl_training.run_layout import KEPT, checkpoint_name
from rl_training.runtime.checkpoint.reading import report_write_errors
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.state_checks import Count
from rl_training.system.durable_files import replace_file

PAUSES = 2
"""The number of newest pauses whose checkpoints are kept."""


class Kept(TypedDict):
    """The content of `kept.json`."""

    num_timesteps: list[Count]


def keep_pause(root: Path, num_timesteps: int) -> None:
    """Keeps the checkpoint of a pause, in addition to that of the pause before; keeping it again changes nothing.

    Args:
        root: The `checkpoints` directory of a run.
        num_timesteps: The step of the checkpoint at which the run has paused.

    Raises:
        CheckpointError: The record of earlier pauses is damaged.
        CheckpointNotWritten: The directory can't be written.
    """
    steps = sorted({*_read_steps(root), num_timesteps})[-PAUSES:]
    with report_write_errors(root, root / KEPT):
        replace_file(root / KEPT, json.dumps({"num_timesteps": steps}) + "\n")


def list_kept(root: Path) -> set[Path]:
    """Returns the paths of the checkpoints that are kept for forks, of which some may no longer exist.

    Raises:
        CheckpointError: The record is damaged.
    """
    return {root / checkpoint_name(step) for step in _read_steps(root)}


def _read_steps(root: Path) -> list[int]:
    path = root / KEPT
    if not path.exists():
        return []
    try:
        steps: list[int] = read_json(path, Kept)["num_timesteps"]
    except (OSError, NotReadable) as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; remove it to continue without it") from error
    return steps
