"""Refuses links in a run directory: this package makes none, so a link was planted or made by hand.

If `replay` or `checkpoints` of a received run were a link, files elsewhere would be read, sent to MLflow or removed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.run_layout import FILES, FOLDERS, find_run_directory


def refuse_links(path: Path) -> None:
    """Checks that nothing in a run directory is a link, pipe or device; the directory itself may be reached by a link.

    Args:
        path: The run directory, its folder of checkpoints, or the directory of a checkpoint in it.

    Raises:
        CheckpointError: Something is a link, pipe or device; the message names it.
    """
    run_dir = find_run_directory(path)
    for entry in [run_dir / name for name in (*FOLDERS, *FILES)]:
        for found in _find_links(entry):
            raise CheckpointError(
                f"{found} is a link or not a regular file; a run directory has only files and folders, so that nothing "
                f"outside of it is read, written or removed; replace it by a copy, or remove it"
            )


def _find_links(path: Path) -> Iterator[Path]:
    """Yields every path below `path`, itself included, that is neither file nor folder; skips paths that disappear."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            for entry in path.iterdir():
                yield from _find_links(entry)
        elif not stat.S_ISREG(mode):
            yield path
    except (FileNotFoundError, NotADirectoryError):
        return
