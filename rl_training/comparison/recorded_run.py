"""The record of a run as comparisons and data frames read it: from the run's directory, or from MLflow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training import run_layout
from rl_training.api.run_listing import State, find_newest_step, find_state, name_state
from rl_training.config.reading.recorded_settings import read_recorded_settings
from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError, error_line, printable
from rl_training.experiment.loading import build_config
from rl_training.runs.metadata import read_metadata
from rl_training.runtime.checkpoint.manifest import read_settings_text
from rl_training.security.planted_links import refuse_links
from rl_training.security.untrusted_json import open_plain_file
from rl_training.system.download_directories import make_download_directory
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import FORKED_FROM, PHASE, SWEEP_UID, TRIAL, VERSION, make_legal_name
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.record_schemas import Address, Description, Status
from rl_training.tracking.shipping.metrics_reader import LineReader

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

Points = dict[str, dict[int, float]]
"""The values of each metric by step."""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run, its settings, and its metrics."""

    name: str
    """The directory or the MLflow run id, for messages."""
    run_uid: str
    run_id: str | None
    """The id of the MLflow run; None if it is not known."""
    run_dir: str | None
    config: TrainConfig
    state: State
    stop_reason: str | None
    """Why its training ended; None if that is not recorded."""
    origin: str | None
    """The `run_uid` of the run that this one was forked from."""
    started: datetime
    versions: Mapping[str, str]
    """The versions of packages."""
    sweep: str | None
    """The `uid` of the sweep whose trial it is; None for a run of its own."""
    trial: str | None
    """Its name within the sweep, such as `t0007-s3`."""
    phase: str | None
    """`search`, or `confirmation` for the runs on new seeds."""
    points: Points
    """The metrics that were asked for."""
    last_step: int
    """The largest step of these metrics, or of all metrics in the run's directory; 0 if there are none."""


def read_directory(run_dir: Path, metrics: Collection[str] | None = None) -> RecordedRun:
    """Returns the run in a directory.

    Args:
        run_dir: The directory.
        metrics: The names of the metrics to read; by default all of them.

    Raises:
        CheckpointError: Something in the directory is a link.
        ConfigError: The settings are not valid.
        UserError: The directory holds no run, or its record is damaged.
    """
    try:
        return _read_directory(run_dir, metrics)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"{run_dir} can't be read: {error_line(error)}") from error


def _read_directory(run_dir: Path, metrics: Collection[str] | None) -> RecordedRun:
    refuse_links(run_dir)
    metadata = read_metadata(run_dir)
    address = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
    status = json_files.read_json(run_dir / run_layout.STATUS, Status)
    points, last_step = _read_points(run_dir / run_layout.METRICS, metrics)
    return RecordedRun(
        name=str(run_dir),
        run_uid=printable(metadata["run_uid"]),
        run_id=printable(address["run_id"]) if address else None,
        run_dir=str(run_dir),
        config=_read_config(run_dir / run_layout.CONFIG, str(run_dir / run_layout.CONFIG)),
        state=find_state(run_dir, find_newest_step(run_dir) or 0),
        stop_reason=status["stop_reason"] if status else None,
        origin=printable(str(origin.get("run_uid"))) if (origin := metadata.get("forked_from")) else None,
        started=datetime.fromisoformat(metadata["started"]).astimezone(UTC),
        versions={printable(name): printable(version) for name, version in metadata["versions"].items()},
        **_select_place(read_tags(run_dir)),
        points=points,
        last_step=last_step,
    )


def read_from_mlflow(client: MlflowClient, run: Run, metrics: Iterable[str]) -> RecordedRun:
    """Returns a run in MLflow with some of its metrics.

    Args:
        client: MLflow's client.
        run: A training run.
        metrics: The names of the metrics to read.

    Raises:
        ConfigError: The settings are not valid.
        MlflowException: MLflow can't be reached, or the run has no settings.
    """
    run_id, tags = run.info.run_id, run.data.tags
    local = client.download_artifacts(run_id, run_layout.CONFIG, str(make_download_directory()))
    histories = {name: client.get_metric_history(run_id, make_legal_name(name)) for name in metrics}
    points = {name: {point.step: point.value for point in history} for name, history in histories.items() if history}
    return RecordedRun(
        name=f"run {run_id}",
        run_uid=printable(tags[RUN_UID]),
        run_id=run_id,
        run_dir=printable(tags["run_dir"]) if "run_dir" in tags else None,
        config=_read_config(Path(local), f"runs:/{run_id}/{run_layout.CONFIG}"),
        state=name_state(run.info.status, tags.get("stop_reason")),
        stop_reason=tags.get("stop_reason"),
        origin=printable(tags[FORKED_FROM]) if FORKED_FROM in tags else None,
        started=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        versions={
            printable(name.removeprefix(VERSION)): printable(version)
            for name, version in tags.items()
            if name.startswith(VERSION)
        },
        **_select_place(tags),
        points=points,
        last_step=max((step for values in points.values() for step in values), default=0),
    )


def read_tags(run_dir: Path) -> Mapping[str, str]:
    """Returns the tags with which the run in a directory is tracked; none if it is not."""
    description = json_files.read_json(run_dir / run_layout.TRACKING, Description)
    return description["tags"] if description else {}


def find_directory(run: Run) -> Path | None:
    """Returns the directory of a run in MLflow if it is on this machine, else None."""
    run_dir = Path(run.data.tags.get("run_dir", ""))
    try:
        same = read_metadata(run_dir)["run_uid"] == run.data.tags.get(RUN_UID)
    except UserError:
        return None
    return run_dir if same else None


def _select_place(tags: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the place of a run in a sweep, from its tags."""
    names = {"sweep": SWEEP_UID, "trial": TRIAL, "phase": PHASE}
    return {name: printable(tags[tag]) if tag in tags else None for name, tag in names.items()}


def _read_config(path: Path, source: str) -> TrainConfig:
    try:
        with open_plain_file(path) as file:
            text = read_settings_text(path, file)
    except OSError as error:
        raise UserError(f"{source} can't be read: {error.strerror or error}") from None
    return build_config(read_recorded_settings(text, source), ())


def _read_points(path: Path, metrics: Collection[str] | None) -> tuple[Points, int]:
    """Returns the values of some metrics, and the largest step of all."""
    points: Points = {}
    last_step = 0
    for line in LineReader(path).read_lines():
        last_step = max(last_step, line["step"])
        for name, value in line["metrics"].items():
            if metrics is None or name in metrics:
                points.setdefault(name, {})[line["step"]] = value
    return points, last_step
