"""Passes on to MLflow and to a run's other sinks what they lack, after training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.config.document import read_mapping
from rl_training.config.named_modules import remove_modules, require_permission
from rl_training.config.sections import TrackingConfig
from rl_training.errors import USER_CODE_ERRORS, error_line
from rl_training.experiment.loading import config_from_text
from rl_training.security.planted_links import refuse_links
from rl_training.tracking.shipping.shipment import ShipReport
from rl_training.tracking.shipping.sync import sync
from rl_training.tracking.sinks.follower import Follower
from rl_training.tracking.sinks.lookup import require_usable_sinks
from rl_training.tracking.sinks.progress import count_missing, format_lines, locate, read_run


@dataclass(frozen=True)
class SinkReport:
    """Reports how much of a run a sink has."""

    name: str
    missing: int
    """Number of lines of `metrics.jsonl` that the sink lacks."""
    message: str
    """Why it lacks them; empty if it has all."""


@dataclass(frozen=True)
class SyncReport:
    """Reports how much of a run is in MLflow and in its other sinks."""

    run_dir: Path
    mlflow: ShipReport | None
    """The report about MLflow; None for a run that was trained untracked, and has sinks."""
    sinks: list[SinkReport]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing anywhere."""
        mlflow = self.mlflow is None or not (self.mlflow.unsent or self.mlflow.message)
        return mlflow and not any(sink.missing or sink.message for sink in self.sinks)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values: that about MLflow, and `sinks` if the run has any."""
        about_sinks = {"sinks": [asdict(sink) for sink in self.sinks]} if self.sinks else {}
        return {**(asdict(self.mlflow) if self.mlflow is not None else {}), **about_sinks}

    def lines(self) -> list[str]:
        """Returns the report for people."""
        lines = []
        if self.mlflow is not None:
            lines = [f"MLflow run {self.mlflow.run_id} has {self.mlflow.sent} metric values of {self.run_dir}"]
            lines += [self.mlflow.message] if self.mlflow.message else []
        for sink in self.sinks:
            state = f"lacks {format_lines(sink.missing)}" if sink.missing else "has all metrics"
            lines.append(f"sink {sink.name} {state} of {self.run_dir}" + (f": {sink.message}" if sink.message else ""))
        return lines


def sync_everything(run_dir: str | Path, *, new_run: bool = False, allow_modules: Collection[str] = ()) -> SyncReport:
    """Passes on to a run's sinks what they lack, then sends to MLflow what it lacks; see `complete_sinks` and `sync`.

    Raises:
        UserError: As these functions. A run that was trained untracked is no error if it has sinks.
    """
    run_dir = Path(run_dir)
    sinks = complete_sinks(run_dir, allow_modules=allow_modules)
    untracked = bool(sinks) and not (run_dir / run_layout.TRACKING).exists()
    return SyncReport(run_dir, None if untracked else sync(run_dir, new_run=new_run), sinks)


def complete_sinks(run_dir: str | Path, *, allow_modules: Collection[str] = ()) -> list[SinkReport]:
    """Passes on to the sinks of a run the lines that they lack; if they have everything, nothing changes.

    Args:
        run_dir: The run's directory.
        allow_modules: Modules that a received run may name; see `rl_training.config.named_modules`.

    Returns:
        A report for each sink of the newest training process; none if the run has no sinks.

    Raises:
        ModuleRefused: The run is received, and a sink's module is not allowed.
        ConfigError: A sink's module is not installed.
        CheckpointError: A file of the run is a link.
    """
    run_dir = Path(run_dir).absolute()
    refuse_links(run_dir)
    _, names = read_run(run_dir)
    if not names:
        return []
    _require_permission(run_dir, names, allow_modules)
    require_usable_sinks(names)
    return [_complete(run_dir, name) for name in dict.fromkeys(names)]


def _require_permission(run_dir: Path, names: list[str], allow_modules: Collection[str]) -> None:
    path = run_dir / run_layout.CONFIG
    config = remove_modules(config_from_text(path.read_text(encoding="utf-8"), source=str(path)))
    config = config.model_copy(update={"tracking": TrackingConfig(sinks=tuple(names))})
    source = str(run_dir / run_layout.SINKS / run_layout.SINKS_RUN)
    require_permission(config, run_dir, source=source, overrides=read_mapping({}, source), allow_modules=allow_modules)


def _complete(run_dir: Path, name: str) -> SinkReport:
    run, _ = read_run(run_dir)
    follower, message = Follower(run, name), ""
    try:
        with FileLock(locate(run_dir, name, ".lock"), timeout=0):
            try:
                while follower.advance():
                    pass
            except USER_CODE_ERRORS as error:
                message = error_line(error)
                follower.note_trouble(message)
            finally:
                follower.close()
    except Timeout:
        message = "another process passes this run on to it; let it end, then try again"
    return SinkReport(name, count_missing(run_dir, name), message)
