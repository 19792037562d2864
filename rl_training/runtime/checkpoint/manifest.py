"""The manifest of a checkpoint: what the checkpoint is, and the size and hash of each of its files.

The manifest is written last and read first. A file in the directory is opened only if the manifest lists it, by a plain
file name, and used only if its size and hash match.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from rl_training.errors import CheckpointError, describe_fault, one_line
from rl_training.run_layout import CONFIG
from rl_training.security.untrusted_json import NotReadable, open_plain_file, read_json
from rl_training.system.file_entry import FileEntry, Sha256

FORMAT: Literal["rl_training.checkpoint"] = "rl_training.checkpoint"
FORMAT_VERSION: Literal[1] = 1
"""The format that this version writes, and the newest that it reads."""

MANIFEST = "manifest.json"
POLICY, TRAINER = "policy.pt", "trainer.pt"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SHARD_NAME = re.compile(r"[0-9a-f]{64}\.pt")
MAX_CONFIG_BYTES = 2**20
_SETTLED_NS = 2 * 10**9

FileState = tuple[int, int, int, int, int]
"""Changes whenever a file does: device, inode, size, and the times of the last write and the last change."""


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["rl_training.checkpoint"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    algorithm: str
    """The name of the registered algorithm."""
    num_timesteps: NonNegativeInt
    """The step: environment transitions so far. This number alone orders checkpoints."""
    run_uid: str
    """The run that wrote it."""
    created: str
    """UTC, ISO 8601."""
    versions: dict[str, str]
    """Versions of Python and of the packages that the numbers depend on."""
    config_hash: Sha256
    """The hash of the settings that define the run."""
    policy_sha256: Sha256
    """The identity of the policy: a hash over names, dtypes, shapes and bytes."""
    files: dict[str, FileEntry]
    """Every file except the manifest."""
    extra: dict[str, Any] = {}
    """JSON that the writer adds."""

    def to_json(self) -> str:
        """Returns the text of `manifest.json`, which ends with a hash of everything before it."""
        body = self.model_dump(mode="json")
        return json.dumps({**body, "manifest_sha256": _hash_body(body)}, indent=2, allow_nan=False) + "\n"


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks `manifest.json`; opens no other file.

    Raises:
        CheckpointError: The manifest is missing, damaged, foreign, or of a newer format.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        what = "is a file, and a checkpoint is a directory" if directory.exists() else "does not exist"
        raise CheckpointError(f"{directory} {what}")
    try:
        data = read_json(path, Any)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} has no {MANIFEST}: it is not a checkpoint, or its save did not finish"
        ) from None
    except (OSError, NotReadable) as error:
        raise CheckpointError(f"{path} can't be read: {one_line(error)}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a manifest of rl_training (its format is not {FORMAT!r})")
    version = data.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} is of the newer format {version}; this rl_training reads up to {FORMAT_VERSION}: update it"
        )
    stated = data.pop("manifest_sha256", None)
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(map(describe_fault, error.errors()))
        raise CheckpointError(f"{path} is damaged: {one_line(faults)}") from error
    if stated != _hash_body(data):
        raise CheckpointError(f"{path} is damaged: its own hash does not match")
    _check_names(path, manifest.files)
    return manifest


def is_shard(name: str) -> bool:
    """Returns whether a file is a replay shard, which is named by its sha256, so that equal names mean equal files."""
    return _SHARD_NAME.fullmatch(name) is not None


def verify_files(directory: Path, files: Mapping[str, FileEntry]) -> dict[str, FileState]:
    """Checks the size and hash of each file.

    Returns:
        The state in which each file was hashed; a file still in this state need not be hashed again. Files changed
        within the last two seconds are left out, because another change within one tick of the file system's clock
        would not show.

    Raises:
        CheckpointError: A file, which the message names, is missing, is a link, or differs.
    """
    states = {}
    for name, entry in files.items():
        path = directory / name
        try:
            with open_plain_file(path) as file:
                state, now = read_file_state(file), time.time_ns()
                check_open_file(path, file, entry)
                if max(state[-2:]) < now - _SETTLED_NS:
                    states[name] = state
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except OSError as error:
            raise CheckpointError(f"{path} can't be read: {one_line(error)}") from error
    return states


def read_file_state(file: BufferedReader) -> FileState:
    """Returns the current state of an open file."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def check_open_file(path: Path, file: BufferedReader, entry: FileEntry) -> None:
    """Checks an open file against its entry and seeks back to its start.

    Raises:
        CheckpointError: The size or hash differs.
    """
    size = os.fstat(file.fileno()).st_size
    if size != entry.size:
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, the manifest says {entry.size}")
    if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
        raise CheckpointError(f"{path} is damaged: its sha256 differs from the manifest's")
    file.seek(0)


def read_settings_text(path: Path, file: BufferedReader) -> str:
    """Returns the text of a settings file.

    Raises:
        CheckpointError: The file is too large or not UTF-8.
    """
    data = file.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path} is refused: it has more than {MAX_CONFIG_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is refused: {error}") from error


def _check_names(path: Path, files: Mapping[str, FileEntry]) -> None:
    for name in files:
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST:
            raise CheckpointError(f"{path} names the file {name!r}: the files of a checkpoint must be in its directory")
    for name in (CONFIG, POLICY, TRAINER):
        if name not in files:
            raise CheckpointError(f"{path} does not list {name}, which every checkpoint has")


def _hash_body(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
