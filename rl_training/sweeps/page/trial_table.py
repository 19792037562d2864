"""Writes the table of a sweep's trials: `trials.json` in the form that MLflow's pages show, and `trials.csv`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.security.secrets import redact
from rl_training.sweeps.trials import Trial

BEFORE = ("trial", "phase", "state", "score", "held_out", "num_timesteps")
AFTER = ("seeds", "run_ids", "run_dirs", "policy_sha256", "forked_from", "error")
"""The columns before and after those of the settings."""

Cell = str | int | float | bool | None


def make_columns(keys: Sequence[str]) -> list[str]:
    """Returns the names of the columns, if these settings (dotted keys) are searched."""
    return [*BEFORE, *keys, *AFTER]


def make_rows(keys: Sequence[str], trials: Sequence[Trial]) -> list[list[Cell]]:
    """Returns a row for each trial; a setting that is not set in a trial is None."""
    return [_make_row(keys, trial) for trial in trials]


def _make_row(keys: Sequence[str], trial: Trial) -> list[Cell]:
    params: Mapping[str, Any] = redact(dict(trial.params))
    return [
        trial.number,
        trial.phase,
        trial.state,
        trial.score,
        mean_held_out(trial),
        trial.num_timesteps,
        *(format_value(params.get(key)) for key in keys),
        ", ".join(map(str, trial.seeds)),
        _join(run.run_id for run in trial.runs),
        _join(run.run_dir for run in trial.runs),
        _join(run.policy_sha256 for run in trial.runs),
        _describe_lineage(trial),
        _join(dict.fromkeys(run.error for run in trial.runs)),
    ]


def mean_held_out(trial: Trial) -> float | None:
    """Returns the mean held-out score of the trial's runs, or None if any of them has none."""
    scores = [run.held_out for run in trial.runs if run.held_out is not None]
    return math.fsum(scores) / len(scores) if scores and len(scores) == len(trial.runs) else None


def format_value(value: Any) -> Cell:
    """Returns the value of a setting as a cell: numbers and texts as they are, lists and mappings as JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=str)


def _join(texts: Any) -> str | None:
    return ", ".join(text for text in texts if text) or None


def _describe_lineage(trial: Trial) -> str | None:
    """Returns the runs that a member of a population was forked from, oldest first."""
    return _join(
        f"trial {origin['trial']} at step {origin['num_timesteps']:,}" for run in trial.runs for origin in run.lineage
    )


def write_table_json(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """Returns the table as `MlflowClient.log_table` writes it; that function would append to the present table."""
    return json.dumps({"columns": columns, "data": rows}, allow_nan=False).encode()


def write_table_csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """Returns the table as CSV, with an empty field for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()
