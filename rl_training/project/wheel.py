"""The wheel of rl_training that a project keeps, so that its images have the version it was made with."""

from __future__ import annotations

import json
import zipfile
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rl_training.errors import UserError
from rl_training.project.project_files import WHEELS
from rl_training.system.durable_files import make_directory, replace_file

PATTERN = "rl_training-*.whl"


def find_wheel(given: Path | None) -> Path | None:
    """Returns the wheel to keep: the given one, or the one from which the running package was installed.

    Returns:
        The wheel; None if the package was installed from elsewhere, or that file is gone.

    Raises:
        UserError: The given file is not a wheel of rl_training.
    """
    if given is not None:
        if not given.match(PATTERN) or not _is_wheel(given):
            raise UserError(f"--wheel: got {given}, expected a wheel {PATTERN}; `make wheel` in a clone builds one")
        return given.absolute()
    try:
        source = json.loads(distribution("rl-training").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    address = urlsplit(str(source.get("url", "")))
    path = Path(unquote(address.path))
    return path if address.scheme == "file" and path.match(PATTERN) and path.is_file() else None


def _is_wheel(path: Path) -> bool:
    """Returns whether a file is an archive with the package's metadata, as pip expects it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(fnmatch(name, "rl_training-*.dist-info/METADATA") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def list_wheels(folder: Path) -> list[Path]:
    """Returns the wheels of rl_training that a project keeps."""
    return sorted((folder / WHEELS).glob(PATTERN))


def keep_wheel(wheel: Path, folder: Path) -> None:
    """Copies a wheel into a project, in place of those that it keeps."""
    old = list_wheels(folder)
    make_directory(folder / WHEELS)
    replace_file(folder / WHEELS / wheel.name, wheel.read_bytes())
    for path in old:
        if path.name != wheel.name:
            path.unlink()
