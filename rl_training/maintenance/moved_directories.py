"""Finds the run directories of a store that is migrated, in the home and elsewhere, and locks them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.errors import CheckpointError, UserError, printable
from rl_training.runs.locks import RunLock
from rl_training.runs.metadata import list_home, read_metadata
from rl_training.security.planted_links import refuse_links
from rl_training.system.paths import runs_root
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_run import RUN_UID, is_training_run
from rl_training.tracking.mlflow_store import iterate_runs
from rl_training.tracking.record_schemas import Address

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def find_directories(source: MlflowClient, uri: str) -> tuple[list[Path], list[str]]:
    """Returns the run directories that track to a store, and the places of those that are not there.

    Tags of a run say where its directory is. Anyone can write tags, so the directory must be of the same run.

    Args:
        source: Client of the store.
        uri: The URI of the store.
    """
    home = list_home()
    found, lost = [run_dir for run_dir in home if _find_run_id(run_dir, uri) is not None], []
    in_home = {_find_run_uid(run_dir) for run_dir in home}
    experiments = [experiment.experiment_id for experiment in source.search_experiments()]
    for run in iterate_runs(source, experiments):
        if not is_training_run(run) or run.data.tags[RUN_UID] in in_home:
            continue
        run_dir = _find_directory(run)
        if run_dir is not None:
            if _find_run_id(run_dir, uri) == run.info.run_id:
                found.append(run_dir)
        elif not _was_cleaned(run):
            lost.append(printable(f"{run.data.tags.get('host', '')}:{run.data.tags.get('run_dir', '')}"))
    return found, lost


def _find_run_id(run_dir: Path, uri: str) -> str | None:
    """Returns the id that a run directory has in a store, or None if it does not track to it."""
    address = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
    return address["run_id"] if address is not None and address["tracking_uri"] == uri else None


def _find_run_uid(run_dir: Path) -> str | None:
    with suppress(UserError):
        return str(read_metadata(run_dir)["run_uid"])
    return None


def _find_directory(run: Run) -> Path | None:
    """Returns the directory of a run if it is on this machine and certainly of this run."""
    tags = run.data.tags
    run_dir = Path(tags.get("run_dir", ""))
    if tags.get("host") != socket.gethostname() or not run_dir.is_absolute():
        return None
    with suppress(CheckpointError, OSError, ValueError):
        refuse_links(run_dir)
        return run_dir if _find_run_uid(run_dir) == tags[RUN_UID] else None
    return None


def _was_cleaned(run: Run) -> bool:
    """Returns whether the run's directory was in the home, where it is no more."""
    tags = run.data.tags
    return tags.get("host") == socket.gethostname() and Path(tags.get("run_dir", "")).parent == runs_root()


def lock_directories(run_dirs: list[Path], locks: ExitStack) -> None:
    """Keeps other processes from training or sending the runs meanwhile.

    Raises:
        UserError: A process does.
    """
    for run_dir in run_dirs:
        refuse_links(run_dir)
        locks.enter_context(RunLock(run_dir))
        try:
            locks.enter_context(FileLock(run_dir / run_layout.SHIPPER_LOCK, timeout=0))
        except Timeout:
            raise UserError(f"a process sends {run_dir} to MLflow; let it end, then try again") from None
