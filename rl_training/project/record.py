"""The record of what `rl-training init` wrote, by which an upgrade knows which files the user has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rl_training import __version__
from rl_training.errors import UserError
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.system.durable_files import replace_file

FILE = ".rl-training.json"


def _check_version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError("expected a version such as 0.2.0") from None
    return text


class ProjectRecord(BaseModel):
    """What `rl-training init` wrote into a project; what a newer version records besides is ignored."""

    model_config = ConfigDict(frozen=True)

    version: Annotated[str, AfterValidator(_check_version)]
    """The version of rl_training that wrote it last."""
    package: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]
    """The name of the project's Python package."""
    files: Mapping[str, str]
    """The hash of each file's text as it was written, by its path."""


def hash_text(text: str) -> str:
    """Returns the hash of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_record(folder: Path) -> ProjectRecord:
    """Returns the record of a project.

    Raises:
        UserError: The folder has none, or it can't be read.
    """
    path = folder / FILE
    try:
        record: ProjectRecord = read_json(path, ProjectRecord)
        return record
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist, so this is not a project that `rl-training init` made; "
            f"`rl-training init FOLDER` makes one"
        ) from None
    except (OSError, NotReadable) as error:
        raise UserError(
            f"{path} can't be read: {error}; restore the file, for example by `git checkout {FILE}` in that folder"
        ) from None


def write_record(folder: Path, package: str, files: Mapping[str, str]) -> None:
    """Writes the record of a project that this version has written.

    Args:
        folder: The project.
        package: The name of its Python package.
        files: The hash of each file's text, by its path.
    """
    record = ProjectRecord(version=__version__, package=package, files=files)
    replace_file(folder / FILE, record.model_dump_json(indent=2) + "\n")
