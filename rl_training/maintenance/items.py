"""What `rl-training clean` would remove, and what it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["run directory", "deleted run", "deleted model", "flow run"]


class StillNeeded(Exception):
    """An item is needed now, although it was not when it was found."""


@dataclass(frozen=True)
class Item:
    """Something that nothing needs any more."""

    kind: Kind
    name: str
    size: int | None
    """The bytes that its removal frees; None if they can't be told, as those of database rows."""
    remove: Callable[[], None] = field(repr=False, compare=False)
    """Removes it; raises `StillNeeded`, without a change, if something needs it by now."""
    description: str = ""
    """What people know it by, if its name is only an id."""


@dataclass
class Findings:
    """The items of one kind, and the reasons why others are kept."""

    items: list[Item] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)
    """The number of things that are kept, by reason."""
    notes: list[str] = field(default_factory=list)
    """What could not be looked at, and what to do about it."""


def measure(folder: Path) -> int:
    """Returns the bytes of the files below a folder; a file with several names in it counts once."""
    sizes = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        sizes[state.st_dev, state.st_ino] = state.st_size if not path.is_dir() else 0
    return sum(sizes.values())
