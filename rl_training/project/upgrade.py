"""`rl-training init --upgrade FOLDER`: takes what a newer rl_training would write into a project, file by file."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from rl_training import __version__
from rl_training.errors import UserError
from rl_training.project.new_project import COPY_WHEEL, write_project_file
from rl_training.project.project_files import WHEELS, render_files
from rl_training.project.record import ProjectRecord, hash_text, read_record, write_record
from rl_training.project.wheel import find_wheel, keep_wheel, list_wheels

KEPT = ".before-upgrade"
"""The ending of the copy of a file that the user had changed, and that was replaced."""

Kind = Literal["new", "changed", "changed by both"]


@dataclass(frozen=True)
class Change:
    """A file that a newer version writes differently."""

    path: str
    kind: Kind
    """`new`: the earlier version did not write it. `changed`: the user left it as it was. `changed by both`: the user
    has changed it too."""
    before: str
    after: str

    def describe(self) -> str:
        """Returns the difference as text."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), self.path, f"{self.path}, {__version__}", lineterm=""
        )
        note = {
            "new": "a new file",
            "changed": "you have not changed this file",
            "changed by both": f"you have changed this file; yours would be kept as {self.path}{KEPT}",
        }[self.kind]
        return "\n".join([f"{self.path}: {note}", *lines])


@dataclass(frozen=True)
class Upgrade:
    """What an upgrade did."""

    folder: Path
    before: str
    """The version that had written the project."""
    taken: tuple[str, ...]
    left: tuple[str, ...]
    """The files that the user did not take."""
    wheel: str | None
    """The name of the wheel that the project keeps now."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {
            "folder": str(self.folder),
            "before": self.before,
            "now": __version__,
            "taken": list(self.taken),
            "left": list(self.left),
            "wheel": self.wheel,
        }

    def lines(self) -> list[str]:
        """Returns the result as text."""
        lines = [f"{self.folder}: written by rl_training {self.before}, now by {__version__}"]
        lines += [f"  taken: {path}" for path in self.taken] + [f"  left as it was: {path}" for path in self.left]
        if not (self.taken or self.left):
            lines.append("  nothing to change")
        return lines if self.wheel else [*lines, COPY_WHEEL]


def upgrade(folder: Path, ask: Callable[[str, str], bool], *, wheel: Path | None = None) -> Upgrade:
    """Takes what this version would write into a project, after asking for each file.

    A file that only the user has changed, or has removed, stays as it is.

    Args:
        folder: The project.
        ask: Called with a text to show and a question; whether the user agrees.
        wheel: See `rl_training.project.new_project.init`.

    Raises:
        UserError: The folder is no project, a newer version has written it, or the wheel is none of rl_training.
    """
    folder = folder.absolute()
    record, found = read_record(folder), find_wheel(wheel)
    if Version(record.version) > Version(__version__):
        raise UserError(
            f"{folder} was written by rl_training {record.version}, and this is the older {__version__}, which would "
            f"take changes back; install the wheel of {record.version} or newer, then repeat the command"
        )
    texts = render_files(record.package)
    taken, left, files = [], [], dict(record.files)
    for change in find_changes(folder, record, texts):
        if not ask(change.describe(), f"take the new {change.path}?"):
            left.append(change.path)
            continue
        if change.kind == "changed by both":
            write_project_file(folder, change.path + KEPT, change.before)
        write_project_file(folder, change.path, change.after)
        files[change.path] = hash_text(change.after)
        taken.append(change.path)
    if found is not None and _is_other(found, folder):
        old = ", ".join(path.name for path in list_wheels(folder)) or "none"
        if ask(f"{WHEELS}/: {old}", f"keep {found.name} instead?"):
            keep_wheel(found, folder)
            taken.append(f"{WHEELS}/{found.name}")
        else:
            left.append(f"{WHEELS}/{found.name}")
    write_record(folder, record.package, files)
    kept = list_wheels(folder)
    return Upgrade(folder, record.version, tuple(taken), tuple(left), kept[-1].name if kept else None)


def find_changes(folder: Path, record: ProjectRecord, texts: dict[str, str]) -> list[Change]:
    """Returns the files of a project that this version writes differently.

    Args:
        folder: The project.
        record: What was written before.
        texts: What this version writes, by path.
    """
    changes = []
    for path, after in texts.items():
        written = record.files.get(path)
        if written == hash_text(after):
            continue
        if not (folder / path).is_file():
            if written is None:
                changes.append(Change(path, "new", "", after))
            continue
        try:
            before = (folder / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{folder / path} can't be read: {error}") from None
        if before != after:
            kind: Kind = "changed" if hash_text(before) == written else "changed by both"
            changes.append(Change(path, kind, before, after))
    return changes


def _is_other(wheel: Path, folder: Path) -> bool:
    """Returns whether a project keeps no wheel, or others than this one."""
    return [path.read_bytes() for path in list_wheels(folder)] != [wheel.read_bytes()]
