"""The folders of runs and embedded services: absolute, so the same from every working folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES
from pathlib import Path

import platformdirs

from rl_training.errors import UserError, one_line
from rl_training.security import owner_only_files
from rl_training.system.durable_files import make_directory

HOME_VARIABLE = "RL_TRAINING_HOME"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
SQLITE = "sqlite:///"

_FOLDERS = (HOME_VARIABLE, "XDG_DATA_HOME", "PREFECT_HOME")
"""Environment variables that name a folder which this process and its children share."""


def make_paths_absolute() -> None:
    """Makes the relative paths in environment variables absolute, for this process and its children.

    Call it at the start of a command and before importing the code of an environment, which may change the working
    folder.

    Raises:
        UserError: A path is relative and the working folder has been removed.
    """
    for name in _FOLDERS:
        if chosen := os.environ.get(name):
            os.environ[name] = _make_absolute(chosen)
    if (uri := os.environ.get(URI_VARIABLE, "")).startswith(SQLITE):
        os.environ[URI_VARIABLE] = SQLITE + _make_absolute(uri.removeprefix(SQLITE))
    if modules := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(_make_absolute, modules.split(os.pathsep)))


def require_usable_folders() -> None:
    """Checks that there is a working folder and a home folder, in which MLflow and Prefect find their settings.

    Raises:
        UserError: The working folder has been removed, `HOME` is relative, or `HOME` is not set and the system does
            not know the home folder of this user.
    """
    _make_absolute(".")
    try:
        found = Path.home()
    except RuntimeError:
        raise UserError(
            f"user {os.getuid()} has no home folder: the system doesn't know this user and HOME is not set; set HOME "
            f"to a folder that can be written"
        ) from None
    if not found.is_absolute():
        raise UserError(f"HOME is the relative path {str(found)!r}; set HOME to an absolute path")


def remember_working_folder() -> Callable[[], None]:
    """Returns a function that changes back to the current working folder, which environments may leave."""
    before = "."
    with suppress(OSError):  # the folder has been removed
        before = str(Path.cwd())

    def go_back() -> None:
        with suppress(OSError):
            os.chdir(before)

    return go_back


@contextmanager
def keep_working_folder() -> Iterator[None]:
    """Returns to the current working folder after the block."""
    go_back = remember_working_folder()
    try:
        yield
    finally:
        go_back()


def require_path_text(text: str) -> str:
    """Returns a text that names a path or something else; the path need not exist.

    Raises:
        UserError: The system takes no such path: the text is too long.
    """
    try:
        Path(text).exists()
    except OSError as error:
        raise UserError(f"{one_line(text)} can't be a path or the name of a run ({error.strerror})") from None
    return text


def home() -> Path:
    """Returns the home of rl_training: `$RL_TRAINING_HOME`, or else a folder in the user's data folder.

    The folder is made if it is missing, readable by its owner only.

    Raises:
        UserError: The folder can't be made or written.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    try:
        path = Path(chosen).expanduser() if chosen else platformdirs.user_data_path("rl_training", appauthor=False)
        path = path.absolute()
    except (RuntimeError, OSError) as error:  # no home folder, or no working folder
        raise UserError(f"the home of rl_training can't be found: {error}; set {HOME_VARIABLE} to a folder") from None
    _make(path)
    if not chosen:  # a folder that the user has chosen may be shared on purpose
        owner_only_files.tighten(path)
    return path


def runs_root() -> Path:
    """Returns the folder of run directories."""
    return _make(home() / "runs")


def locks_root() -> Path:
    """Returns the folder of lock files."""
    return _private("locks")


def downloads_root() -> Path:
    """Returns the folder of downloads."""
    return _private("downloads")


def prefect_root() -> Path:
    """Returns the folder that is Prefect's home if no server is configured."""
    return _private("prefect")


def embedded_artifact_root() -> Path:
    """Returns the folder in which the embedded MLflow store keeps artifacts."""
    return _make(home() / "artifacts")


def embedded_tracking_uri() -> str:
    """Returns the address of the embedded MLflow store, a SQLite file."""
    return f"{SQLITE}{home() / 'mlflow.db'}"


def _make_absolute(place: str) -> str:
    """Returns an absolute path; a path that begins with `~` stays as it is for its reader to expand."""
    try:
        return place if place.startswith("~") else str(Path(place).absolute())
    except OSError as error:
        raise UserError(
            f"the working folder can't be used ({error.strerror}); change to a folder that exists"
        ) from None


def _private(name: str) -> Path:
    """Returns a folder of the home that only its owner can read."""
    path = _make(home() / name)
    owner_only_files.tighten(path)
    return path


def _make(path: Path) -> Path:
    try:
        make_directory(path, owner_only_files.FOLDER_MODE)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        raise UserError(
            f"the home of rl_training can't be used: {path}: {error.strerror or error}; "
            f"set {HOME_VARIABLE} to a folder that can be written"
        ) from None
    return path
