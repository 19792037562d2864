"""The record of what `rl-training init` wrote, by which an upgrade knows which files the user has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_training import __version__
from rl_training.errors import UserError
from rl_training.system.durable_files import replace_file

FILE = ".rl-training.json"


class ProjectRecord(BaseModel):
    """What `rl-training init` wrote into a project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = __version__
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
        return ProjectRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist, so this is not a project that `rl-training init` made; "
            f"`rl-training init FOLDER` makes one"
        ) from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}") from None


def write_record(folder: Path, record: ProjectRecord) -> None:
    """Writes the record of a project."""
    replace_file(folder / FILE, record.model_dump_json(indent=2) + "\n")
