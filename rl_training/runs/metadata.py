"""Reads `metadata.json`, which describes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from rl_training.errors import UserError
from rl_training.run_layout import METADATA
from rl_training.security.untrusted_json import NotReadable, read_json


class Git(TypedDict):
    """The commit that the command ran from."""

    commit: str
    dirty: bool


@with_config(ConfigDict(extra="allow"))
class Metadata(TypedDict):
    """The fields of `metadata.json` that are read back; the file has more."""

    run_uid: str
    started: str
    command: list[str]
    versions: dict[str, str]
    git: Git | None
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
