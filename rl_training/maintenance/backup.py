"""`rl-training backup` and `restore`: both servers' databases and MLflow's artifacts in one folder.

The databases are dumped before the artifacts are copied. Servers write an artifact's file and its row at different
times, and remove nothing by themselves: so each file that a row of the dump names exists when the files are copied.
Files that are newer than the dump do no harm. Prefect's database comes before MLflow's for the same reason, because its
flow runs are found in MLflow by their ids.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from typing_extensions import TypedDict

from rl_training import __version__
from rl_training.errors import UserError
from rl_training.maintenance.databases import MLFLOW_DATABASE, PREFECT_DATABASE, Database, read_database
from rl_training.security.untrusted_json import NotReadable, open_plain_file, read_json
from rl_training.system.durable_files import (
    make_directory,
    move_into_place,
    remove_leftovers,
    replace_file,
    staging_path,
    sync_directory,
    sync_file,
)
from rl_training.tracking.json_files import write_json

ARTIFACTS_FOLDER = "MLFLOW_ARTIFACTS_DESTINATION"
"""The server's own environment variable."""

DESCRIPTION = "backup.json"
SUMS = "SHA256SUMS"
"""The hash of every other file, in the form of the program `sha256sum`."""
ARTIFACTS = "artifacts"


class Description(TypedDict):
    """The content of `backup.json`."""

    format: Literal[1]
    created: str
    versions: dict[str, str]
    dumps: list[str]


@dataclass(frozen=True)
class Stack:
    """What is backed up."""

    prefect: Database
    mlflow: Database
    artifacts: Path

    @property
    def databases(self) -> tuple[Database, Database]:
        """Both databases, in the order of a backup."""
        return self.prefect, self.mlflow


@dataclass(frozen=True)
class BackupResult:
    """A backup that was made or restored."""

    folder: Path
    files: int
    size: int
    """Bytes."""
    verb: Literal["backed up to", "restored from"]

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {"folder": str(self.folder), "files": self.files, "bytes": self.size}

    def lines(self) -> list[str]:
        """Returns the result as text."""
        return [f"{self.verb} {self.folder}: {self.files:,} files, {self.size:,} bytes"]


def read_stack() -> Stack:
    """Returns what the servers' environment variables name.

    Raises:
        UserError: One is missing, or names something else than PostgreSQL, an SQLite file, or a folder.
    """
    text = os.environ.get(ARTIFACTS_FOLDER, "")
    address = urlsplit(text)
    if not text or address.scheme not in ("", "file"):
        raise UserError(
            f"{ARTIFACTS_FOLDER} is {text!r}, expected the folder in which MLflow's server keeps artifacts; a "
            f"bucket is backed up by its own versions and replicas, and a machine without servers by a copy of "
            f"RL_TRAINING_HOME (`cp -a`) while nothing trains"
        )
    return Stack(
        read_database("prefect", PREFECT_DATABASE),
        read_database("mlflow", MLFLOW_DATABASE),
        Path(unquote(address.path)).absolute(),
    )


def back_up(folder: Path) -> BackupResult:
    """Writes a backup while the servers run.

    Args:
        folder: The folder of the backup, which must not exist. It appears when it is complete.

    Raises:
        UserError: The folder exists, or something can't be read.
    """
    stack, folder = read_stack(), folder.absolute()
    if folder.exists():
        raise UserError(f"{folder} exists, expected a new folder; a backup never replaces another")
    if not stack.artifacts.is_dir():
        raise UserError(f"{stack.artifacts} does not exist, expected the folder of MLflow's artifacts")
    if folder.resolve().is_relative_to(stack.artifacts.resolve()):
        raise UserError(f"{folder} is among the artifacts that are backed up, expected a folder elsewhere")
    with _only_for_owner():
        return _write(stack, folder)


@contextmanager
def _only_for_owner() -> Iterator[None]:
    """Lets new files be read by their owner alone: Prefect's database has the key to the secrets in it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _write(stack: Stack, folder: Path) -> BackupResult:
    staged = staging_path(folder)
    try:
        make_directory(folder.parent)
        remove_leftovers(folder.parent, folder.name)
        staged.mkdir()
        for database in stack.databases:
            database.dump(staged / database.dump_name)
        _copy_files(stack.artifacts, staged / ARTIFACTS)
        names = ("mlflow", "prefect")
        description: Description = {
            "format": 1,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"rl_training": __version__, **{name: version(name) for name in names}},
            "dumps": [database.dump_name for database in stack.databases],
        }
        write_json(staged / DESCRIPTION, description)
        files = sorted(_iterate_files(staged))
        lines = [f"{_hash(staged / name)}  {name}\n" for name in files]
        replace_file(staged / SUMS, "".join(lines))
        size = sum((staged / name).stat().st_size for name in files)
        move_into_place(staged, folder)
    except OSError as error:
        raise UserError(f"the backup can't be written: {error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return BackupResult(folder, len(files), size, "backed up to")


def restore(folder: Path) -> BackupResult:
    """Restores a backup to a stack that nobody has used, whose servers don't run yet.

    Everything in the backup is verified before anything is written. The artifacts come first, so that no row names a
    file that is not there.

    Raises:
        UserError: The backup is damaged, or the stack is not empty.
    """
    stack, folder = read_stack(), folder.absolute()
    description, files = _verify(folder)
    if description["dumps"] != [database.dump_name for database in stack.databases]:
        raise UserError(
            f"the backup has {' and '.join(description['dumps'])}, expected "
            f"{' and '.join(database.dump_name for database in stack.databases)}: it is restored to the same kinds of "
            f"databases"
        )
    if stack.artifacts.exists() and any(stack.artifacts.iterdir()):
        raise UserError(
            f"{stack.artifacts} is not empty, expected a new folder; a restore never replaces anything. If an "
            f"earlier restore was interrupted, remove this folder, make both databases anew, and repeat the command"
        )
    for database in stack.databases:
        database.require_empty()
    try:
        with _only_for_owner():
            _fill(stack, folder)
    except OSError as error:
        raise UserError(f"the backup can't be restored: {error}; empty the new stack and try again") from error
    size = sum((folder / name).stat().st_size for name in files)
    return BackupResult(folder, len(files), size, "restored from")


def _fill(stack: Stack, folder: Path) -> None:
    stack.artifacts.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(stack.artifacts.parent, stack.artifacts.name)
    staged = staging_path(stack.artifacts)
    _copy_files(folder / ARTIFACTS, staged)
    for database in reversed(stack.databases):
        if database is stack.mlflow:
            move_into_place(staged, stack.artifacts)
        database.load(folder / database.dump_name)


def _verify(folder: Path) -> tuple[Description, list[str]]:
    """Returns the description and the files of a backup whose files are all as they were written.

    Raises:
        UserError: One is missing, changed, a link, or was added.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist, expected the folder of a backup")
    try:
        description: Description = read_json(folder / DESCRIPTION, Description)
        with open_plain_file(folder / SUMS) as file:
            pairs = [line.rstrip("\n").split("  ", 1) for line in file.read().decode().splitlines()]
    except (OSError, NotReadable, UnicodeDecodeError) as error:
        raise UserError(f"{folder} is no complete backup of this version: {error}") from None
    there = set(_iterate_files(folder)) - {SUMS}
    listed = {pair[-1] for pair in pairs}
    for name in sorted(there ^ listed):
        raise UserError(f"{folder / name} {'was added' if name in there else 'is missing'}: the backup is damaged")
    for digest, name in pairs:
        if _hash(folder / name) != digest:
            raise UserError(f"{folder / name} has changed since it was written: the backup is damaged")
    return description, sorted(listed)


def _iterate_files(folder: Path) -> Iterator[str]:
    """Yields the path of each file below a folder.

    Raises:
        UserError: Something is a link, a pipe or a device, or has an odd name.
    """
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise UserError(f"{path} is a link or not a regular file, which no backup has; replace it by a copy")
        name = path.relative_to(folder).as_posix()
        if not name.isprintable():
            raise UserError(f"{name!a} has characters that {SUMS} can't have; rename it")
        if path.is_file():
            yield name


def _copy_files(source: Path, target: Path) -> None:
    """Copies a folder file by file; a file that goes meanwhile is left out."""
    target.mkdir(parents=True)
    for name in _iterate_files(source) if source.is_dir() else ():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / name, path)
        except FileNotFoundError:
            path.unlink(missing_ok=True)
            continue
        sync_file(path)
    sync_directory(target)


def _hash(path: Path) -> str:
    with open_plain_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
