"""Sends a sweep to MLflow after it has ended: the runs of its trials, then its page, below which they are nested."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training import run_layout
from rl_training.errors import TrackingError, UserError
from rl_training.sweeps.page.page_upload import RECORD, open_page, read_page, send_page
from rl_training.sweeps.segments import find_trial_dir
from rl_training.tracking.mlflow_store import (
    connect,
    explain,
    resolve_tracking_uri,
    strip_credentials,
)
from rl_training.tracking.sinks.completion import SyncReport, sync_everything


@dataclass(frozen=True)
class SweepSyncReport:
    """Reports how much of a sweep is in MLflow."""

    folder: Path
    run_id: str
    """The MLflow run with the sweep's page."""
    runs: list[SyncReport]
    """A report for each tracked run of a trial on this machine."""
    problems: list[str]
    """A line for each run that can't be sent."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.problems and all(report.complete for report in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "run_id": self.run_id,
            "runs": [{"run_dir": str(report.run_dir), **report.to_dict()} for report in self.runs],
            "problems": self.problems,
        }

    def lines(self) -> list[str]:
        """Returns the report for people."""
        lines = [line for report in self.runs for line in report.lines()] + self.problems
        return [*lines, f"MLflow run {self.run_id} has the page of the sweep in {self.folder}"]


def is_sweep_dir(path: Path) -> bool:
    """Returns whether a path is the folder of a sweep."""
    return (path / RECORD).is_file()


def sync_sweep(folder: Path, *, new_run: bool = False, allow_modules: Collection[str] = ()) -> SweepSyncReport:
    """Sends what MLflow lacks of a sweep: the runs of its trials that are on this machine, then its page.

    Args:
        folder: The sweep's folder.
        new_run: Whether to send everything to new runs if the old ones were deleted in MLflow.
        allow_modules: Modules that a received run may name; see `rl_training.config.named_modules`.

    Raises:
        TrackingError: The folder has no page, or MLflow can't be reached.
    """
    record, uri = read_page(folder), resolve_tracking_uri()
    runs, problems = [], []
    pattern = find_trial_dir(record["run_uid"], "*")
    for run_dir in sorted(pattern.parent.glob(pattern.name)):
        if (run_dir / run_layout.TRACKING).exists():
            try:
                runs.append(sync_everything(run_dir, new_run=new_run, allow_modules=allow_modules))
            except UserError as error:
                problems.append(f"{run_dir.name}: {error}")
    try:
        address = open_page(folder, uri, new_run=new_run)
        send_page(connect(uri), address, folder, {})
    except TrackingError:
        raise
    except Exception as error:  # any error of MLflow or the network
        raise TrackingError(f"MLflow at {strip_credentials(uri)} can't be used: {explain(error, uri)}") from None
    return SweepSyncReport(folder, address.run_id, runs, problems)
