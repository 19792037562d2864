"""`rl-training init FOLDER`: makes a project in which everything that a repository of ours can do works."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_training.errors import UserError
from rl_training.project.project_files import EXECUTABLE, WHEELS, render_files
from rl_training.project.record import FILE, hash_text, write_record
from rl_training.project.wheel import find_wheel, keep_wheel
from rl_training.system.durable_files import make_directory, replace_file

COPY_WHEEL = (
    f"{WHEELS}/ holds no wheel of rl_training, which the worker's image installs; copy the one that you installed there"
)
_FOLDERS = ("build", "configs", "docker", "tests", WHEELS)
"""The folders of a project that hold something else; setuptools makes `build`, which git ignores."""


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
            *([] if self.wheel else [COPY_WHEEL]),
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
    if folder.exists() and (not folder.is_dir() or any(path.name != ".git" for path in folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder, expected a new or empty one; {_advise(folder)}")
    package = choose_package(folder, package)
    found = find_wheel(wheel)
    files = render_files(package)
    for path, text in files.items():
        write_project_file(folder, path, text)
    if found is not None:
        keep_wheel(found, folder)
    write_record(folder, package, {path: hash_text(text) for path, text in files.items()})
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


def choose_package(folder: Path, given: str | None) -> str:
    """Returns the name of a project's package.

    Args:
        folder: The project's folder.
        given: The name that the user asked for.

    Raises:
        UserError: It is no name for a package, or something else has it.
    """
    package = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_") if given is None else given
    got = f"got {package!r} for the name of the package"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package):
        raise UserError(
            f"{got}, expected lower-case letters, digits and _, beginning with a letter; choose one with --package NAME"
        )
    if owner := _find_owner(package, folder):
        raise UserError(f"{got}, {owner}; choose another name with --package NAME")
    return package


def _find_owner(package: str, folder: Path) -> str | None:
    """Returns why no project can have a package of this name; None if one can."""
    if keyword.iskeyword(package):
        return "a keyword of Python that no import can name"
    if package in ("sitecustomize", "usercustomize"):
        return "which Python would import at each start"
    if package in sys.stdlib_module_names:
        return "which a module of Python's standard library has"
    if package in _FOLDERS:
        return "which another folder of the project has"
    if _is_installed(package, folder):
        return "which an installed package has"
    return None


def _is_installed(package: str, folder: Path) -> bool:
    """Returns whether a package of this name can be imported, or pip would replace one to install the project."""
    spec = find_spec(package)
    if spec is not None and list(spec.submodule_search_locations or ()) != [str(folder)]:
        return True  # an existing project folder on the path is not a package, though Python would import it as one
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
