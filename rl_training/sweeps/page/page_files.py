"""Writes the files of a sweep's page into the sweep's folder; they go to MLflow under the same names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.serialization import dump_config
from rl_training.errors import UserError
from rl_training.sweeps.page.importance import compute_importance
from rl_training.sweeps.page.pictures import draw_history, draw_importance, draw_parallel_coordinates, save_png
from rl_training.sweeps.page.result_lines import format_result
from rl_training.sweeps.page.trial_table import make_columns, make_rows, write_table_csv, write_table_json
from rl_training.tracking import json_files

if TYPE_CHECKING:
    from rl_training.sweeps.loading import Sweep
    from rl_training.sweeps.plan import RunRecord
    from rl_training.sweeps.sweep_result import SweepResult
    from rl_training.sweeps.trials import Trial

logger = logging.getLogger(__name__)

TABLE = "trials.json"
"""The table that MLflow's pages show."""

HISTORY, COORDINATES, IMPORTANCE = "history.png", "parallel_coordinates.png", "importance.png"
SHARES = "importance.json"
SETTINGS, CSV, RESULT = "sweep.yaml", "trials.csv", "result.json"
WINNER_CONFIG = "winner.yaml"
COMPARISON = "comparison.html"

ARTIFACTS = (SETTINGS, TABLE, CSV, HISTORY, COORDINATES, IMPORTANCE, SHARES, RESULT, WINNER_CONFIG, COMPARISON)
"""The files of the folder that go to MLflow, if they are there."""


def write_files(folder: Path, sweep: Sweep, search: Sequence[Trial], confirmation: Sequence[Trial]) -> None:
    """Writes the settings, the tables and the pictures; what can't be drawn is logged, and the rest is written.

    Args:
        folder: The sweep's folder.
        sweep: The sweep.
        search: The trials of the search.
        confirmation: The trials of the confirmation.
    """
    _write(folder / SETTINGS, _dump_sweep(sweep))
    keys = list(sweep.settings.space)
    columns, rows = make_columns(keys), make_rows(keys, [*search, *confirmation])
    _write(folder / TABLE, write_table_json(columns, rows))
    _write(folder / CSV, write_table_csv(columns, rows))
    metric, direction, dimensions = sweep.settings.metric, sweep.settings.direction, sweep.space.dimensions
    _draw(folder / HISTORY, lambda: draw_history(search, metric, direction))
    if dimensions:
        _draw(folder / COORDINATES, lambda: draw_parallel_coordinates(dimensions, search, metric, direction))
        importance = compute_importance(sweep, search)
        _write(folder / SHARES, _dump_json(importance.to_dict()))
        if importance.shares:
            _draw(folder / IMPORTANCE, lambda: draw_importance(importance.shares))


def write_result(folder: Path, sweep: Sweep, result: SweepResult) -> None:
    """Writes the result as JSON, and the winner's settings, which `rl-training train --config` takes."""
    _write(folder / RESULT, _dump_json(result.to_dict()))
    if (params := result.winner_params) is not None:
        comment = "".join(f"# {line}\n" for line in format_result(result) if not line.startswith(("files:", "page:")))
        config = sweep.base.replace(**params)
        _write(folder / WINNER_CONFIG, f"{comment}\n{dump_config(config)}".encode())


def write_comparison(folder: Path, result: SweepResult) -> None:
    """Writes the page that compares the confirmed points, with the base config as the reference.

    Nothing is written if fewer is better, which comparisons don't know, or if the runs are on other machines and not
    in MLflow. What can't be compared is logged.
    """
    from rl_training.comparison.comparison import compare
    from rl_training.comparison.page import make_page

    if result.direction == "minimize" or len(result.confirmed) < 2:
        return
    runs = [run for point in result.confirmed for run in point.runs if run.state == "complete"]
    sources = [source for run in runs if (source := _find_source(run)) is not None]
    if not sources or len(sources) < len(runs):
        return
    try:
        _write(folder / COMPARISON, make_page(compare(*sources, metric=result.confirmed_metric)).encode())
    except UserError as error:
        logger.warning("the confirmed points can't be compared: %s", error)


def _find_source(run: RunRecord) -> str | None:
    """Returns the directory of a run if it is on this machine, else its MLflow run; None if neither is known."""
    return run.run_dir if Path(run.run_dir).is_dir() else run.run_id


def _dump_sweep(sweep: Sweep) -> bytes:
    """Returns the settings of the sweep with those of the base config in full, so that they need no other file."""
    settings = sweep.settings.model_copy(update={"config": sweep.base.model_dump(mode="json"), "overrides": {}})
    return dump_config(settings).encode()


def _dump_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False, default=str) + "\n").encode()


def _draw(path: Path, draw: Callable[[], Any]) -> None:
    try:
        _write(path, save_png(draw()))
    except Exception as error:  # the trials matter more than their pictures
        logger.warning("%s could not be drawn: %s", path.name, error)


def _write(path: Path, data: bytes) -> None:
    """Writes a file if its content changes, so that it is sent again only then."""
    if not path.exists() or path.read_bytes() != data:
        json_files.write_bytes(path, data)
