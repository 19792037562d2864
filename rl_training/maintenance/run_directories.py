"""Finds run directories that nothing needs any more, and removes them."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.api.run_listing import State, find_newest_step, find_state
from rl_training.errors import AlreadyTraining, RLTrainingError
from rl_training.maintenance.items import Findings, Item, StillNeeded, measure
from rl_training.maintenance.needed_runs import Needed, find_needed
from rl_training.runs.locks import RunLock
from rl_training.runs.metadata import list_home, read_metadata
from rl_training.security.planted_links import refuse_links
from rl_training.security.untrusted_json import NotReadable
from rl_training.system.durable_files import move_into_place
from rl_training.system.paths import runs_root
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import SWEEP_UID
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import UNKNOWN_CODES, strip_credentials
from rl_training.tracking.record_schemas import Address, Description
from rl_training.tracking.shipping.logged_models import list_queued_models
from rl_training.tracking.shipping.upload_progress import load_progress
from rl_training.tracking.shipping.uploads import list_pending_artifacts, list_pending_checkpoints
from rl_training.tracking.sinks.progress import count_missing, read_run

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

InMlflow = Literal["complete", "unfinished", "deleted", "missing"]
"""How a run stands in MLflow: its end and everything before it is there; its end is not; it was deleted; or MLflow
does not have it, or nobody knows."""


@dataclass(frozen=True)
class RunFacts:
    """What decides whether a run directory may go."""

    age: timedelta
    """The time since the last write to it."""
    state: State
    sending: bool
    """Whether a process sends the run."""
    in_mlflow: InMlflow
    sent: bool
    """Whether MLflow and the run's other sinks have everything."""
    registered: bool
    """Whether a registered version comes from the run."""
    in_sweep: bool


def explain_why_kept(facts: RunFacts, older_than: timedelta) -> str | None:
    """Returns why a run directory must stay, or None if it may go."""
    reasons = {
        "a process trains or sends it": facts.sending or facts.state == "running",
        "it is younger": facts.age <= older_than,
        "its record can't be read": facts.state == "unreadable",
        "it can be resumed": facts.state in ("stopped", "killed", "failed"),
        "a registered version comes from it": facts.registered,
        "it belongs to a sweep": facts.in_sweep,
        "MLflow does not have it": facts.in_mlflow in ("missing", "unfinished"),
        "parts of it are not sent yet": not facts.sent,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def find_run_directories(client: MlflowClient, uri: str, older_than: timedelta) -> Findings:
    """Returns the run directories of the home that may go.

    Args:
        client: MLflow's client.
        uri: The store.
        older_than: Only directories to which nobody has written for so long.
    """
    findings, needed = Findings(), find_needed(client)
    for run_dir in list_home():
        try:
            refuse_links(run_dir)
            facts = _read_facts(client, uri, needed, run_dir)
            reason = explain_why_kept(facts, older_than)
        except (RLTrainingError, NotReadable, OSError, ValueError):
            reason = "its record can't be read"
        if reason is not None:
            findings.kept[f"run directory: {reason}"] += 1
            continue
        remove = partial(_remove, client, run_dir, _find_last_write(run_dir))
        findings.items.append(Item("run directory", str(run_dir), measure(run_dir), remove))
    for left in runs_root().glob(f"{run_layout.REMOVED}*"):
        findings.items.append(Item("run directory", str(left), measure(left), partial(shutil.rmtree, left)))
    return findings


def _read_facts(client: MlflowClient, uri: str, needed: Needed, run_dir: Path) -> RunFacts:
    run_uid = read_metadata(run_dir)["run_uid"]
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    address = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
    run_id = address["run_id"] if address and address["tracking_uri"] == strip_credentials(uri) else None
    return RunFacts(
        age=timedelta(seconds=time.time() - _find_last_write(run_dir)),
        state=find_state(run_dir, find_newest_step(run_dir) or 0),
        sending=_is_held(run_dir / run_layout.SHIPPER_LOCK),
        in_mlflow="missing" if run_id is None else _look_up(client, run_id, run_uid),
        sent=description is not None and run_id is not None and is_sent(run_dir, uri, run_id),
        registered=run_uid in needed.run_uids or run_id in needed.run_ids,
        in_sweep=description is not None and SWEEP_UID in description["tags"],
    )


def _look_up(client: MlflowClient, run_id: str, run_uid: str) -> InMlflow:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code in UNKNOWN_CODES:
            return "missing"
        raise
    if run.data.tags.get(RUN_UID) != run_uid:
        return "missing"
    if run.info.lifecycle_stage != "active":
        return "deleted"
    return "complete" if run.info.status == "FINISHED" else "unfinished"


def is_sent(run_dir: Path, uri: str, run_id: str) -> bool:
    """Returns whether MLflow and the other sinks have everything that the directory has."""
    progress = load_progress(run_dir, strip_credentials(uri), run_id)
    files = [run_dir / name for name in (run_layout.METRICS, run_layout.SYSTEM_METRICS)]
    lines = all(progress.offsets.get(path.name, 0) == path.stat().st_size for path in files if path.exists())
    pending = [
        *list_pending_checkpoints(run_dir, progress.checkpoints),
        *list_pending_artifacts(run_dir, progress.artifacts),
        *list_queued_models(run_dir),
        *(name for name in read_run(run_dir)[1] if count_missing(run_dir, name)),
    ]
    return lines and not pending


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


def _find_last_write(run_dir: Path) -> float:
    """Returns the time of the last write to a run, in seconds since 1970; taking a lock is no write."""
    ignored = (".lock", ".holder")
    files = (path for path in run_dir.rglob("*") if path.is_file() and path.suffix not in ignored)
    return max((path.stat().st_mtime for path in files), default=0.0)


def _remove(client: MlflowClient, run_dir: Path, last_write: float) -> None:
    """Removes a run directory; nobody ever sees a part of it.

    Raises:
        StillNeeded: A process trains or sends the run, or has since it was found, or a version was registered from it.
    """
    try:
        with RunLock(run_dir), FileLock(run_dir / run_layout.SHIPPER_LOCK, timeout=0):
            run_uid = read_metadata(run_dir)["run_uid"]
            if _find_last_write(run_dir) != last_write or run_uid in find_needed(client).run_uids:
                raise StillNeeded(f"{run_dir} has been used meanwhile")
            removed = run_dir.with_name(f"{run_layout.REMOVED}{run_dir.name}")
            move_into_place(run_dir, removed)
    except (AlreadyTraining, Timeout):
        raise StillNeeded(f"a process trains or sends {run_dir}") from None
    shutil.rmtree(removed)
