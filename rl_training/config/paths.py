"""Where runs and the embedded services keep their files: one absolute place, the same from every folder."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path

import platformdirs

from rl_training.errors import UserError

HOME_VARIABLE = "RL_TRAINING_HOME"


def home() -> Path:
    """Returns the home of rl_training: `$RL_TRAINING_HOME`, or the user's data folder. It is made if need be.

    Raises:
        UserError: It can't be made or written.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    path = Path(chosen).expanduser() if chosen else platformdirs.user_data_path("rl_training", appauthor=False)
    return _made(path.absolute())


def runs_root() -> Path:
    """Returns the folder of run directories."""
    return _made(home() / "runs")


def locks_root() -> Path:
    """Returns the folder of lock files."""
    return _made(home() / "locks")


def embedded_artifact_root() -> Path:
    """Returns the folder in which the embedded MLflow store keeps artifacts."""
    return _made(home() / "artifacts")


def embedded_tracking_uri() -> str:
    """Returns the address of the embedded MLflow store, a SQLite file."""
    return f"sqlite:///{home() / 'mlflow.db'}"


def _made(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        raise UserError(
            f"the home of rl_training can't be used: {path}: {error.strerror or error}; "
            f"set {HOME_VARIABLE} to a folder that can be written"
        ) from None
    return path
