"""Where runs and the embedded services keep their files: one absolute place, the same from every folder."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path

import platformdirs

from rl_training.config import owner_only
from rl_training.errors import UserError

HOME_VARIABLE = "RL_TRAINING_HOME"


def home() -> Path:
    """Returns the home of rl_training: `$RL_TRAINING_HOME`, or the user's data folder.

    It is made if need be, for its owner alone.

    Raises:
        UserError: It can't be made or written.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    path = Path(chosen).expanduser() if chosen else platformdirs.user_data_path("rl_training", appauthor=False)
    made = _made(path.absolute())
    if not chosen:  # a folder that the user has chosen may be shared on purpose
        owner_only.tighten(made)
    return made


def runs_root() -> Path:
    """Returns the folder of run directories."""
    return _made(home() / "runs")


def locks_root() -> Path:
    """Returns the folder of lock files."""
    return _private("locks")


def downloads_root() -> Path:
    """Returns the folder of what is downloaded."""
    return _private("downloads")


def prefect_root() -> Path:
    """Returns the folder that is Prefect's home where no server was set up."""
    return _private("prefect")


def embedded_artifact_root() -> Path:
    """Returns the folder in which the embedded MLflow store keeps artifacts."""
    return _made(home() / "artifacts")


def embedded_tracking_uri() -> str:
    """Returns the address of the embedded MLflow store, a SQLite file."""
    return f"sqlite:///{home() / 'mlflow.db'}"


def _private(name: str) -> Path:
    """Returns a folder of the home that holds nothing for other users."""
    path = _made(home() / name)
    owner_only.tighten(path)
    return path


def _made(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=owner_only.FOLDER_MODE, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        raise UserError(
            f"the home of rl_training can't be used: {path}: {error.strerror or error}; "
            f"set {HOME_VARIABLE} to a folder that can be written"
        ) from None
    return path
