"""The files in `sinks/` of a run directory: the run as sinks are told about it, and how far each sink has got."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from rl_training import run_layout
from rl_training.config.sections import SinkName
from rl_training.config.settings import TrainConfig
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.state_checks import Count
from rl_training.tracking import json_files
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.metrics_reader import LineReader, is_line_before
from rl_training.tracking.sinks.sink import SinkRun

logger = logging.getLogger(__name__)


@with_config(ConfigDict(extra="allow"))
class RunForm(TypedDict):
    """The content of `run.json`."""

    run_uid: str
    name: str
    settings: dict[str, Any]
    sinks: list[SinkName]


@with_config(ConfigDict(extra="allow"))
class Progress(TypedDict):
    """The content of a sink's file: how much of `metrics.jsonl` it has."""

    offset: Count
    """Bytes of the file up to the end of the last line that the sink has."""
    mark: str
    """Hash of that line."""
    count: Count
    """Number of lines up to there."""
    state: Any
    """What the sink's `flush` returned."""
    trouble: str
    """Why the sink can't be used now; empty if it can."""


def write_run(run_dir: Path, config: TrainConfig) -> None:
    """Writes `sinks/run.json` for the sinks of these settings."""
    description = describe_run(run_dir, config, {})
    known = json_files.read_json(run_dir / run_layout.TRACKING)
    run: RunForm = {
        "run_uid": description["run_uid"],
        "name": (known or description)["run_name"],
        "settings": serialize_train_config(config),
        "sinks": list(config.tracking.sinks),
    }
    json_files.write_json(run_dir / run_layout.SINKS / run_layout.SINKS_RUN, run)


def read_run(run_dir: Path) -> tuple[SinkRun, list[str]]:
    """Returns the run as sinks are told about it, and the names of its sinks; none if it has no sinks."""
    found = json_files.read_json(run_dir / run_layout.SINKS / run_layout.SINKS_RUN, RunForm)
    if found is None:
        return SinkRun("", "", run_dir, {}), []
    return SinkRun(found["run_uid"], found["name"], run_dir, found["settings"]), found["sinks"]


def locate(run_dir: Path, name: str, suffix: str) -> Path:
    """Returns the file of a sink in `sinks/` with this suffix: `my_sinks.Class.json` for `my_sinks:Class`."""
    return run_dir / run_layout.SINKS / f"{name.replace(':', '.')}{suffix}"


def load_progress(run_dir: Path, name: str) -> Progress:
    """Returns how much of `metrics.jsonl` a sink has.

    After a power cut the file may end before the recorded offset, or have another line there. Then the sink begins
    again.
    """
    saved: Progress | None = json_files.read_json(locate(run_dir, name, ".json"), Progress)
    if saved is None:
        return make_progress()
    if saved["offset"] and not is_line_before(run_dir / run_layout.METRICS, saved["offset"], saved["mark"]):
        logger.warning("%s: the metrics file lost lines that sink %s has; the sink begins again", run_dir, name)
        return make_progress()
    return saved


def count_missing(run_dir: Path, name: str) -> int:
    """Returns the number of lines of the metrics file that a sink lacks."""
    reader = LineReader(run_dir / run_layout.METRICS)
    reader.offset = load_progress(run_dir, name)["offset"]
    return sum(1 for line in reader.read_lines() if line["metrics"])


def format_lines(count: int) -> str:
    """Returns a number of lines in words."""
    return f"{count:,} line{'' if count == 1 else 's'}"


def make_progress() -> Progress:
    """Returns the progress of a sink that has nothing yet."""
    return {"offset": 0, "mark": "", "count": 0, "state": None, "trouble": ""}


def save_progress(run_dir: Path, name: str, progress: Progress) -> None:
    """Records how much a sink has; a power cut may empty the file, and then the sink begins again.

    Raises:
        OSError: The file can't be written.
        ValueError: The sink's state is not made of JSON values.
        TypeError: As `ValueError`.
    """
    json.dumps(progress["state"], allow_nan=False)  # before the old file is touched
    json_files.write_json(locate(run_dir, name, ".json"), progress, sync=False)
