"""How runs ended whose training process is gone: written down, and set in MLflow where nobody was left to do so."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_run import RUN_UID, set_status
from rl_training.tracking.record_schemas import Description, Status
from rl_training.tracking.run_description import is_trainer_alive

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LOOKED_AT = 100
"""Runs that one sweep looks at, at most."""

SWEEP_SECONDS = 5.0
"""After which a sweep begins with no other run; the next one goes on."""


def resolve_end_status(run_dir: Path) -> dict[str, Any]:
    """Returns how the run ended; a process that is gone without a word was killed, and that is written down."""
    path = run_dir / run_layout.STATUS
    status: dict[str, Any] | None = json_files.read_json(path, Status)
    if status is None:
        error = "the training process is gone and left no status: it was killed"
        status = {"status": "KILLED", "stop_reason": "killed", "error": error, "time": _last_sign(run_dir)}
        json_files.write_json(path, status)
    return status


def end_orphaned_runs(client: MlflowClient, own_run_id: str) -> list[str]:
    """Ends in MLflow the runs of this machine that nothing will end any more, as their directories say they ended.

    Such a run is RUNNING in MLflow, its directory is here, the process that trained it is gone, and no other process
    is sending it: the machine lost power, or training and shipper were killed together.

    Args:
        client: MLflow's client.
        own_run_id: The caller's run, which is let be.

    Returns:
        The ids of the runs that were ended.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    running = client.search_runs(
        experiments, f"attributes.status = 'RUNNING' and tags.host = '{socket.gethostname()}'", max_results=LOOKED_AT
    )
    ended = []
    for run in running:
        if time.monotonic() > deadline:
            break
        if run.info.run_id != own_run_id and end_if_orphaned(client, run):
            ended.append(str(run.info.run_id))
    return ended


def end_if_orphaned(client: MlflowClient, run: Run) -> bool:
    """Ends a run in MLflow where it is abandoned; returns whether it was."""
    with _abandoned(run) as run_dir:
        if run_dir is not None:
            set_status(client, run.info.run_id, resolve_end_status(run_dir))
        return run_dir is not None


def is_orphaned(run: Run) -> bool:
    """Returns whether a run's directory is here, the process that trained it is gone, and no other is sending it."""
    with _abandoned(run) as run_dir:
        return run_dir is not None


@contextmanager
def _abandoned(run: Run) -> Iterator[Path | None]:
    """Yields the directory of an abandoned run, locked, and None of any other."""
    run_dir = Path(run.data.tags.get("run_dir", ""))
    if not _has_no_process(run_dir, run):
        yield None
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(run_dir / run_layout.SHIPPER_LOCK, timeout=0))
        except Timeout:
            yield None
            return
        # It may have gone on since, and its shipper waits for the lock.
        yield run_dir if _has_no_process(run_dir, run) else None


def _has_no_process(run_dir: Path, run: Run) -> bool:
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    if description is None or description["run_uid"] != run.data.tags.get(RUN_UID):
        return False
    return not is_trainer_alive(description)


def _last_sign(run_dir: Path) -> float:
    """Returns when the run last wrote something, which a run that is found later tells better than the clock does."""
    written = (run_dir / name for name in (run_layout.TRACKING, run_layout.METRICS))
    return round(max(path.stat().st_mtime for path in written if path.exists()), 3)
