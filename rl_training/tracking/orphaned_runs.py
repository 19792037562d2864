"""Ends orphaned runs: runs whose training process died without recording how they ended."""

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
from rl_training.tracking.shipping.run_page import try_refresh_page

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LOOKED_AT = 100
"""Limit on the number of runs that one sweep checks."""

SWEEP_SECONDS = 5.0
"""Time after which a sweep checks no further run; the next sweep continues."""


def resolve_end_status(run_dir: Path) -> dict[str, Any]:
    """Returns how a run ended; if no status was recorded, its process was killed, and this is recorded."""
    path = run_dir / run_layout.STATUS
    status: dict[str, Any] | None = json_files.read_json(path, Status)
    if status is None:
        error = "the training process ended without recording a status: it was killed"
        status = {"status": "KILLED", "stop_reason": "killed", "error": error, "time": _find_last_write(run_dir)}
        json_files.write_json(path, status)
    return status


def end_orphaned_runs(client: MlflowClient, own_run_id: str) -> list[str]:
    """Ends the orphaned runs of this machine in MLflow, with the status in their directories.

    An orphaned run is RUNNING in MLflow, its directory is on this machine, its training process no longer exists, and
    no other process is sending it. The machine lost power, or training and shipper were killed together.

    Args:
        client: MLflow's client.
        own_run_id: The caller's own run, which is skipped.

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
    """Ends a run in MLflow if it is orphaned; returns whether it was."""
    with _lock_if_orphaned(run) as run_dir:
        if run_dir is not None:
            set_status(client, run.info.run_id, resolve_end_status(run_dir))
            try_refresh_page(client, run.info.run_id, sending=True)
        return run_dir is not None


def is_orphaned(run: Run) -> bool:
    """Returns whether a run is orphaned; see `end_orphaned_runs`."""
    with _lock_if_orphaned(run) as run_dir:
        return run_dir is not None


@contextmanager
def _lock_if_orphaned(run: Run) -> Iterator[Path | None]:
    """Yields the locked directory of an orphaned run, or None for any other run."""
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
        # The run may have been resumed meanwhile, and its shipper waits for the lock.
        yield run_dir if _has_no_process(run_dir, run) else None


def _has_no_process(run_dir: Path, run: Run) -> bool:
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    if description is None or description["run_uid"] != run.data.tags.get(RUN_UID):
        return False
    return not is_trainer_alive(description)


def _find_last_write(run_dir: Path) -> float:
    """Returns the time of the run's last write, which is closer to its end than the present time."""
    written = (run_dir / name for name in (run_layout.TRACKING, run_layout.METRICS))
    return round(max(path.stat().st_mtime for path in written if path.exists()), 3)
