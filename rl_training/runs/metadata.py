"""Reads `metadata.json`, which describes a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from rl_training.errors import UserError
from rl_training.run_layout import METADATA, REMOVED
from rl_training.runs.health_warnings import HealthWarningForm
from rl_training.security.untrusted_json import NotReadable, read_json
from rl_training.system.paths import runs_root


class Git(TypedDict):
    """The commit that the command ran from."""

    commit: str
    dirty: bool


@with_config(ConfigDict(extra="allow"))
class ValidationWarning(TypedDict):
    """A warning of the validation of the environment."""

    message: str


@with_config(ConfigDict(extra="allow"))
class Validation(TypedDict):
    """The validation of the environment before the newest attempt."""

    warnings: list[ValidationWarning]


@with_config(ConfigDict(extra="allow"))
class Metadata(TypedDict):
    """The fields of `metadata.json` that are read back; the file has more."""

    run_uid: str
    started: str
    command: list[str]
    versions: dict[str, str]
    git: Git | None
    validation: NotRequired[Validation]
    health: NotRequired[list[HealthWarningForm]]
    forked_from: NotRequired[dict[str, Any] | None]


def read_metadata(run_dir: Path) -> dict[str, Any]:
    """Returns the content of a run's `metadata.json`.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        return read_json(run_dir / METADATA, Metadata)  # type: ignore[no-any-return]
    except (OSError, NotReadable) as error:
        raise UserError(f"{run_dir} holds no run: {METADATA} can't be read ({error})") from error


def list_home() -> list[Path]:
    """Returns the directories of the runs below the home of rl_training, by name.

    Links are left out, and so is what a cleaning is removing.
    """
    return [
        run_dir
        for run_dir in sorted(runs_root().iterdir())
        if run_dir.is_dir() and not run_dir.is_symlink() and (run_dir / METADATA).exists()
        if not run_dir.name.startswith(REMOVED)
    ]


def find_run_in_home(run_uid: str) -> Path | None:
    """Returns the directory of the run with this `run_uid` below the home of rl_training, or None if there is none.

    Links are left out, because they lead to directories that are not of the home.
    """
    for run_dir in list_home():
        with suppress(UserError):
            if read_metadata(run_dir)["run_uid"] == run_uid:
                return run_dir
    return None
