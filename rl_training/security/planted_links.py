"""Links in a run's directory: none of ours is one, so one that is there was planted or made by hand, and is refused.

If `replay` or `checkpoints` of a received run were a link, files elsewhere would be read, sent to MLflow or removed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.run_layout import FILES, FOLDERS, find_run_directory


def refuse_links(path: Path) -> None:
    """Checks that nothing of a run is a link, pipe or device; how its own directory is reached is the user's choice.

    Args:
        path: The run's directory, its folder of checkpoints, or a checkpoint's directory in it.

    Raises:
        CheckpointError: Something is; names it.
    """
    run_dir = find_run_directory(path)
    for entry in [run_dir / name for name in (*FOLDERS, *FILES)]:
        for found in _below(entry):
            raise CheckpointError(
                f"{found} is a link or no regular file, and a run has none: nothing outside of its directory is read, "
                f"written or removed through it; put a copy of what is meant in its place, or remove it"
            )


def _below(path: Path) -> Iterator[Path]:
    """Yields what is neither a file nor a folder, from a path downwards; what goes meanwhile is passed over."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            for entry in path.iterdir():
                yield from _below(entry)
        elif not stat.S_ISREG(mode):
            yield path
    except (FileNotFoundError, NotADirectoryError):
        return
