"""The callback that records a run's metrics: one line of JSON an event, in `metrics.jsonl` in the run directory.

That file is the truth; another process brings it to MLflow (`shipper.py`). A point's identity is (metric, step): where
a resumed run makes steps again, their points are compared with the lines that are there and not written a second time.
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
"""Event of a line that records points which came out differently when they were made again."""

UNCOMPARED = "time/"
"""Metrics of this prefix differ each time by nature."""


class MetricLog(Callback):
    """Appends metrics to `run_dir/metrics.jsonl` and evaluations to `run_dir/artifacts/evaluations/`.

    A full disk does not end training: lines wait in memory, in order, until there is room.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / run_layout.METRICS
        self.differences: dict[tuple[str, int], tuple[float, float]] = {}
        """Points that came out differently when they were made again: what the file holds, and what came later."""
        self._evaluations = run_dir / run_layout.ARTIFACTS / run_layout.EVALUATIONS
        self._file: FileIO | None = None
        self._unwritten = b""
        self._behind = False
        self._known: dict[tuple[str, int], float] = {}
        self._to_sync: set[Path] = set()

    def on_train_start(self, state: TrainerState) -> None:
        """Opens the file; lines at or after the current step are those that can be made again."""
        self._open(state.num_timesteps)

    def on_update_end(self, state: TrainerState) -> None:
        """Records training metrics, at the cadence at which they come."""
        if state.metrics:
            self.log(state.num_timesteps, state.metrics, "update")

    def on_eval_end(self, state: TrainerState) -> None:
        """Records a periodic evaluation, its episodes included."""
        self.log(state.num_timesteps, state.metrics, "eval")
        if state.evaluation is not None:
            path = self._evaluations / f"{run_layout.checkpoint_name(state.num_timesteps)}.json"
            try:
                evaluation = {"num_timesteps": state.num_timesteps, **state.evaluation.to_dict()}
                json_files.write_json(path, evaluation, sync=False)
                self._to_sync.add(path)
            except OSError as error:
                logger.warning("%s can't be written: %s; training goes on without it", path, error.strerror)

    def files_to_sync(self) -> set[Path]:
        """Returns what was written since the last checkpoint; lines that wait for room are tried again."""
        if self._file is not None:
            with suppress(OSError):
                self._write()
        paths, self._to_sync = self._to_sync, set()
        return paths

    def on_train_end(self, state: TrainerState) -> None:
        """Closes the file; what is logged afterwards opens it again."""
        self.close()

    def log(self, step: int, metrics: Mapping[str, float], event: str) -> None:
        """Appends one line.

        Args:
            step: `num_timesteps` of the event.
            metrics: By their tracked names. NaN and infinity are left out; points that the file holds are compared.
            event: `update`, `eval`, `heldout`, or a word of the caller's.
        """
        if self._file is None:
            self._open(step)
        fresh: dict[str, float] = {}
        differences: dict[str, tuple[float, float]] = {}
        for key, number in metrics.items():
            value = float(number)
            if not math.isfinite(value):
                continue
            before = self._known.pop((key, step), None)
            if before is None:
                fresh[key] = value
            elif before != value and not key.startswith(UNCOMPARED):
                differences[key] = (before, value)
        if fresh:
            self._append({"event": event, "step": step, "time": _now(), "metrics": fresh})
        if differences:
            self._record(step, differences)

    def close(self) -> None:
        """Closes the file; closing twice is fine.

        Raises:
            OSError: Lines can't be written: the disk is full, or the like.
        """
        if self._file is not None:
            try:
                self._write()
            finally:
                self._file.close()
                self._file = None

    def _record(self, step: int, differences: Mapping[str, tuple[float, float]]) -> None:
        if not self.differences:
            key, (before, after) = next(iter(differences.items()))
            logger.warning("this resume is not exact: %s at step %d was %r and is now %r", key, step, before, after)
        self.differences.update({(key, step): pair for key, pair in differences.items()})
        self._append({"event": DIFFERENCE, "step": step, "time": _now(), "metrics": {}, "differences": differences})

    def _append(self, line: Mapping[str, object]) -> None:
        require_not_taken_over(self.path.parent)
        self._unwritten += (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            self._write()
            self._behind = False
        except OSError as error:
            if not self._behind:
                logger.warning(
                    "%s can't be written: %s; training goes on, lines wait for room", self.path, error.strerror
                )
            self._behind = True

    def _write(self) -> None:
        """Writes whole lines or nothing."""
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
        self._known = _points_from(self.path, from_step)
        self._file = FileIO(self.path, "a")  # without a buffer of its own


def cut_damaged(path: Path) -> None:
    """Cuts a metrics file off at the first line that is torn or damaged, as a kill or a power cut leaves its end.

    All that a checkpoint stands on is on disk before the checkpoint is, so what is cut is made again.
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
            logger.info("%s: cut off at byte %s, since the %s bytes behind it are damaged", path, good, lost)
            file.truncate(good)


def _is_line(raw: bytes) -> bool:
    if not raw.endswith(b"\n"):
        return False
    try:
        parse_json(raw, MetricLine)
    except NotReadable:
        return False
    return True


def _points_from(path: Path, from_step: int) -> dict[tuple[str, int], float]:
    """Returns the file's points at or after a step."""
    known: dict[tuple[str, int], float] = {}
    if path.exists():
        with path.open("rb") as file:
            for line in map(parse_json, file):
                if line["step"] >= from_step:
                    known.update({(key, line["step"]): value for key, value in line["metrics"].items()})
    return known


def _now() -> float:
    return round(time.time(), 3)
