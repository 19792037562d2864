"""The callback that logs a run's metrics: one line of JSON per event, in `metrics.jsonl` in the run directory.

This file is the complete record; the shipper sends it to MLflow. A point is identified by metric and step. When a
resumed run repeats steps, their points are compared with the lines in the file and not written again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path

from rl_training import run_layout
from rl_training.runs.locks import require_not_taken_over
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.security.untrusted_json import NotReadable, parse_json
from rl_training.tracking import json_files
from rl_training.tracking.record_schemas import MetricLine

logger = logging.getLogger(__name__)

DIFFERENCE = "difference"
"""Event of a line that lists points whose values changed when their steps were repeated."""

UNCOMPARED = "time/"
"""Prefix of metrics that are not compared because they measure time."""

_encode = json.JSONEncoder(allow_nan=False).encode


class MetricLog(Callback):
    """Appends metrics to `run_dir/metrics.jsonl` and evaluations to `run_dir/artifacts/evaluations/`.

    A full disk does not end training: lines are kept in memory, in order, until there is space.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / run_layout.METRICS
        self.differences: dict[tuple[str, int], tuple[float, float]] = {}
        """Points whose values changed when their steps were repeated: the value in the file, and the new value."""
        self._evaluations = run_dir / run_layout.ARTIFACTS / run_layout.EVALUATIONS
        self._file: FileIO | None = None
        self._unwritten = b""
        self._behind = False
        self._known: dict[tuple[str, int], float] = {}
        self._to_sync: set[Path] = set()

    def on_train_start(self, state: TrainerState) -> None:
        """Opens the file and reads its points at or after the current step, which training may repeat."""
        self._open(state.num_timesteps)

    def on_update_end(self, state: TrainerState) -> None:
        """Logs the training metrics of an update."""
        if state.metrics:
            self.log(state.num_timesteps, state.metrics, "update")

    def on_eval_end(self, state: TrainerState) -> None:
        """Logs a periodic evaluation with its episodes."""
        self.log(state.num_timesteps, state.metrics, "eval")
        if state.evaluation is not None:
            path = self._evaluations / f"{run_layout.checkpoint_name(state.num_timesteps)}.json"
            try:
                evaluation = {"num_timesteps": state.num_timesteps, **state.evaluation.to_dict()}
                json_files.write_json(path, evaluation, sync=False)
                self._to_sync.add(path)
            except OSError as error:
                logger.warning("%s can't be written: %s; training continues without it", path, error.strerror)

    def files_to_sync(self) -> set[Path]:
        """Returns the files written since the last checkpoint; tries again to write lines that wait for disk space."""
        if self._file is not None:
            with suppress(OSError):
                self._write()
        paths, self._to_sync = self._to_sync, set()
        return paths

    def on_train_end(self, state: TrainerState) -> None:
        """Closes the file; the next `log` opens it again."""
        self.close()

    def log(self, step: int, metrics: Mapping[str, float], event: str) -> None:
        """Appends one line.

        Args:
            step: `num_timesteps` of the event.
            metrics: Values by metric name. NaN and infinity are skipped; points in the file are compared.
            event: `update`, `eval`, `heldout`, or a name chosen by the caller.
        """
        if self._file is None:
            self._open(step)
        fresh: dict[str, float] = {}
        differences: dict[str, tuple[float, float]] = {}
        for key, number in metrics.items():
            value = float(number)
            if not math.isfinite(value):
                continue
            before = self._known.pop((key, step), None) if self._known else None
            if before is None:
                fresh[key] = value
            elif before != value and not key.startswith(UNCOMPARED):
                differences[key] = (before, value)
        if fresh:
            self._append({"event": event, "step": step, "time": _get_time(), "metrics": fresh})
        if differences:
            self._log_differences(step, differences)

    def close(self) -> None:
        """Closes the file; does nothing if it is closed.

        Raises:
            OSError: Lines can't be written, for example because the disk is full.
        """
        if self._file is not None:
            try:
                self._write()
            finally:
                self._file.close()
                self._file = None

    def _log_differences(self, step: int, differences: Mapping[str, tuple[float, float]]) -> None:
        if not self.differences:
            key, (before, after) = next(iter(differences.items()))
            logger.warning("this resume is not exact: %s at step %d was %r and is now %r", key, step, before, after)
        self.differences.update({(key, step): pair for key, pair in differences.items()})
        line = {"event": DIFFERENCE, "step": step, "time": _get_time(), "metrics": {}, "differences": differences}
        self._append(line)

    def _append(self, line: Mapping[str, object]) -> None:
        require_not_taken_over(self.path.parent)
        self._unwritten += (_encode(line) + "\n").encode()
        try:
            self._write()
            self._behind = False
        except OSError as error:
            if not self._behind:
                logger.warning(
                    "%s can't be written: %s; training continues, lines wait for disk space", self.path, error.strerror
                )
            self._behind = True

    def _write(self) -> None:
        """Writes all waiting lines or nothing."""
        assert self._file is not None
        end = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(self._unwritten):
                written += self._file.write(self._unwritten[written:])
        except OSError:
            self._file.truncate(end)
            raise
        if self._unwritten:
            self._unwritten = b""
            self._to_sync.add(self.path)

    def _open(self, from_step: int) -> None:
        self.close()
        cut_damaged(self.path)
        self._known = _read_points(self.path, from_step)
        self._file = FileIO(self.path, "a")  # unbuffered, so that a failed write can be undone


def cut_damaged(path: Path) -> None:
    """Truncates a metrics file at its first damaged line, which a kill or power cut may leave.

    Lines up to the newest checkpoint are on disk before the checkpoint is, so training repeats the steps of the removed
    lines.
    """
    if not path.exists():
        return
    good = 0
    with path.open("rb+") as file:
        for raw in file:
            if not _is_line(raw):
                break
            good += len(raw)
        lost = file.seek(0, os.SEEK_END) - good
        if lost:
            logger.info("%s: truncated at byte %s because the %s bytes after it are damaged", path, good, lost)
            file.truncate(good)


def _is_line(raw: bytes) -> bool:
    if not raw.endswith(b"\n"):
        return False
    try:
        parse_json(raw, MetricLine)
    except NotReadable:
        return False
    return True


def _read_points(path: Path, from_step: int) -> dict[tuple[str, int], float]:
    """Returns the points in the file at or after a step."""
    known: dict[tuple[str, int], float] = {}
    if path.exists():
        with path.open("rb") as file:
            for line in map(parse_json, file):
                if line["step"] >= from_step:
                    known.update({(key, line["step"]): value for key, value in line["metrics"].items()})
    return known


def _get_time() -> float:
    return round(time.time(), 3)
