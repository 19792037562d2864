"""The results of runs as pandas data frames, for notebooks and for statistics of your own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training import run_layout
from rl_training.comparison.comparison import Comparison as Comparison
from rl_training.comparison.comparison import compare as compare
from rl_training.comparison.recorded_run import RecordedRun, find_directory, read_directory, read_from_mlflow
from rl_training.comparison.sources import list_experiment
from rl_training.config.resume_rules import flatten_settings
from rl_training.errors import CheckpointError, UserError
from rl_training.run_layout import find_run_directory
from rl_training.runs.metadata import find_run_in_home, list_home, read_metadata
from rl_training.runs.train_result import TrainResult
from rl_training.security.planted_links import refuse_links
from rl_training.system.download_directories import discard_downloads
from rl_training.tracking.checkpoint_sources import RunSource, parse_source, read_source
from rl_training.tracking.mlflow_run import RUN_ID, find_run, get_training_run
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors
from rl_training.tracking.shipping.metrics_reader import LineReader

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

SCORES = ("eval/", "heldout/", "time/")
"""Prefixes of the metrics whose last values `runs` has."""

_ADDRESS = ("run_uid", "run_id", "run_dir", "sweep", "trial", "phase", "state", "started")

Point = tuple[int, str, float, datetime]


def metrics(run: str | PathLike[str] | TrainResult) -> pd.DataFrame:
    """Returns all metrics of a run: a row for each value, with `step`, `name`, `value` and `time`.

    `metrics(run).pivot(index="step", columns="name", values="value")` has a column for each metric.

    Args:
        run: The directory of a run, the result of a training, an MLflow run id, a `run_uid`, or `runs:/ID`. If the
            directory of the run is on this machine, its file is read, which holds every value; MLflow holds about 2,000
            values of each metric, and every evaluation.

    Raises:
        CheckpointError: The directory has links.
        TrackingError: MLflow can't be reached.
        UserError: There is no such run.
    """
    import pandas as pd

    frame = pd.DataFrame(list(_find_points(read_source(run))), columns=["step", "name", "value", "time"])
    return frame.sort_values(["step", "name"], kind="stable", ignore_index=True)


def runs(experiment: str | None = None) -> pd.DataFrame:
    """Returns the runs of an experiment: a row for each run.

    The columns are the addresses of the run; `sweep`, `trial` and `phase` of a sweep's trial; `state` and `started`;
    each setting by its dotted key; and the last values of the metrics `eval/...`, `heldout/...` and `time/...`. Leave
    out the phase `search` before you average: a search has chosen its settings by these scores.

    Args:
        experiment: The name of an experiment in MLflow; by default the runs in the home of rl_training.

    Raises:
        TrackingError: MLflow can't be reached.
        UserError: MLflow has no such experiment.
    """
    import pandas as pd

    with discard_downloads():
        rows = list(_read_home() if experiment is None else _read_experiment(experiment))
    return pd.DataFrame(rows)


def _find_points(source: str) -> Iterator[Point]:
    if Path(source).is_dir():
        return _read_file(find_run_directory(source))
    if RUN_ID.fullmatch(source) and (run_dir := find_run_in_home(source)) is not None:
        return _read_file(run_dir)
    parsed, uri = parse_source(source), resolve_tracking_uri()
    if not isinstance(parsed, RunSource):
        raise UserError(f"{source} is a registered version; expected a run")
    with translate_mlflow_errors(uri, source):
        client = connect(uri)
        found = find_run(client, parsed.run_id)
        if found is None:
            raise UserError(f"{source}: neither MLflow nor the home of rl_training has such a run")
        found = get_training_run(client, found.info.run_id)
        if (run_dir := find_directory(found)) is not None:
            return _read_file(run_dir)
        return iter(list(_read_histories(client, found.info.run_id, sorted(found.data.metrics))))


def _read_file(run_dir: Path) -> Iterator[Point]:
    refuse_links(run_dir)
    read_metadata(run_dir)
    for line in LineReader(run_dir / run_layout.METRICS).read_lines():
        time = datetime.fromtimestamp(line["time"], UTC)
        for name, value in line["metrics"].items():
            yield line["step"], name, value, time


def _read_histories(client: MlflowClient, run_id: str, names: list[str]) -> Iterator[Point]:
    for name in names:
        for point in client.get_metric_history(run_id, name):
            yield point.step, name, point.value, datetime.fromtimestamp(point.timestamp / 1000, UTC)


def _read_home() -> Iterator[dict[str, Any]]:
    for run_dir in list_home():
        try:
            run = read_directory(run_dir)
        except (UserError, CheckpointError) as error:
            logger.warning("%s is left out: %s", run_dir, error)
            continue
        yield _make_row(run, {name: values[max(values)] for name, values in run.points.items()})


def _read_experiment(name: str) -> Iterator[dict[str, Any]]:
    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, name):
        client = connect(uri)
        for found in list_experiment(client, name):
            try:
                run = read_from_mlflow(client, found, [])
            except UserError as error:
                logger.warning("run %s is left out: %s", found.info.run_id, error)
                continue
            yield _make_row(run, found.data.metrics)


def _make_row(run: RecordedRun, values: Mapping[str, float]) -> dict[str, Any]:
    settings = flatten_settings(run.config)
    del settings["run_dir"]
    return {
        **{name: getattr(run, name) for name in _ADDRESS},
        **settings,
        **{name: values[name] for name in sorted(values) if name.startswith(SCORES)},
    }
