"""Puts checkpoint directories in place, and removes them, so that a final name always means a complete checkpoint.

A checkpoint is written under a staging name beside its target and gets its final name by a rename.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.system.durable_files import (
    make_directory,
    move_into_place,
    remove_leftovers,
    staging_path,
    sync_directory,
)

DAMAGED = "damaged-"
"""Prefix of a damaged checkpoint that was in the way of a new one of the same step."""

SUPERSEDED = "superseded-"
"""Prefix of a checkpoint while a later one of the same step takes its place."""


@contextmanager
def stage(target: Path) -> Iterator[Path]:
    """Yields an empty directory beside `target`; removes the remains after the block."""
    path = staging_path(target)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def prepare(root: Path) -> None:
    """Makes `root` if it is missing, else removes half-written files of ended processes and superseded checkpoints."""
    make_directory(root)
    remove_leftovers(root)
    for path in root.glob(f"{SUPERSEDED}*"):
        if (root / path.name.removeprefix(SUPERSEDED)).exists():
            remove(path)


def publish(staged: Path, target: Path) -> None:
    """Gives a staged directory its final name; a directory that has this name is removed afterwards."""
    sync_directory(staged)
    old = None
    if target.exists():
        old = target.with_name(SUPERSEDED + target.name)
        target.rename(old)
    move_into_place(staged, target)
    if old is not None:
        remove(old)


def set_aside(target: Path) -> Path:
    """Renames a damaged checkpoint to a free name `damaged-...` and returns its new path."""
    for i in itertools.count():
        aside = target.with_name(f"{DAMAGED}{target.name}" + (f"-{i}" if i else ""))
        if not aside.exists():
            break
    target.rename(aside)
    return aside


def remove(directory: Path) -> None:
    """Removes a checkpoint; its final name goes first, so that a partial checkpoint never has it."""
    doomed = staging_path(directory)
    directory.rename(doomed)
    shutil.rmtree(doomed)
