"""`rl-training init FOLDER`: makes a project in which everything that a repository of ours can do works."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_training.errors import UserError
from rl_training.project.project_files import EXECUTABLE, WHEELS, render_files
from rl_training.project.record import FILE, ProjectRecord, hash_text, write_record
from rl_training.project.wheel import find_wheel, keep_wheel
from rl_training.system.durable_files import make_directory, replace_file

BUILD_WHEEL = f"{WHEELS}/ holds no wheel of rl_training, which images install; copy one there, or use --wheel FILE"


@dataclass(frozen=True)
class NewProject:
    """A project that was made."""

    folder: Path
    package: str
    files: tuple[str, ...]
    wheel: str | None
    """The name of the wheel that the project keeps."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {
            "folder": str(self.folder),
            "package": self.package,
            "files": list(self.files),
            "wheel": self.wheel,
        }

    def lines(self) -> list[str]:
        """Returns the result as text."""
        wheel = [f"{WHEELS}/{self.wheel}"] if self.wheel else []
        return [
            f"made {self.folder}, with the package {self.package}:",
            *(f"  {path}" for path in [*self.files, *wheel]),
            *([] if self.wheel else [BUILD_WHEEL]),
            "",
            f"next: cd {shlex.quote(str(self.folder))} && pip install --editable '.[dev]' && pytest",
            "then: rl-training train --config configs/tank.yaml",
        ]


def init(folder: Path, *, package: str | None = None, wheel: Path | None = None) -> NewProject:
    """Makes a project in a new or empty folder.

    Args:
        folder: The folder.
        package: The name of the project's Python package; by default that of the folder.
        wheel: The wheel of rl_training that the project's images install; by default the one that this package was
            installed from.

    Raises:
        UserError: The folder is not empty, the name can't be a package's, or the wheel is none of rl_training.
    """
    folder = folder.absolute()
    package = choose_package(folder.name, package)
    found = find_wheel(wheel)
    if folder.exists() and (not folder.is_dir() or any(path.name != ".git" for path in folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder, expected a new or empty one; {_advise(folder)}")
    files = render_files(package)
    for path, text in files.items():
        write_project_file(folder, path, text)
    if found is not None:
        keep_wheel(found, folder)
    write_record(folder, ProjectRecord(package=package, files={path: hash_text(text) for path, text in files.items()}))
    return NewProject(folder, package, tuple(files), None if found is None else found.name)


def _advise(folder: Path) -> str:
    """Returns what to do about a folder in which no project can be made."""
    if (folder / FILE).is_file():
        command = f"rl-training init --upgrade {shlex.quote(str(folder))}"
        return f"it holds a project, into which `{command}` takes the changes of a newer rl_training"
    return "name another folder"


def write_project_file(folder: Path, path: str, text: str) -> None:
    """Writes a file of a project, with its permissions."""
    target = folder / path
    make_directory(target.parent)
    replace_file(target, text)
    if path in EXECUTABLE:
        target.chmod(0o755)


def choose_package(folder: str, given: str | None) -> str:
    """Returns the name of a project's package.

    Args:
        folder: The name of the project's folder.
        given: The name that the user asked for.

    Raises:
        UserError: It is no name for a package, or another package has it.
    """
    package = re.sub(r"[^a-z0-9]+", "_", folder.lower()).strip("_") if given is None else given
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package):
        raise UserError(
            f"got {package!r} for the name of the package, expected lower-case letters, digits and _, beginning with a "
            f"letter; choose one with --package NAME"
        )
    if package in sys.stdlib_module_names or package in ("tests", "configs", "docker", WHEELS) or find_spec(package):
        raise UserError(f"the package {package} exists already; choose another name with --package NAME")
    return package
