"""Writes metrics as TensorBoard event files, each line of `metrics.jsonl` as one record."""

from __future__ import annotations

import importlib
import os
import time
from typing import IO, Any

from rl_training import run_layout
from rl_training.system.durable_files import make_directory
from rl_training.tracking.sinks.sink import Sink, SinkLine, SinkRun, StateLost

EVENT_FILE = "events.out.tfevents.metrics"
"""The event file in the run's folder; TensorBoard looks for `tfevents` in names."""

FILE_VERSION = "brain.Event:2"
"""The content of an event file's first record."""


class TensorBoardSink(Sink):
    """Writes `tensorboard/events.out.tfevents.metrics` in the run directory.

    The state is the size of the file. What follows after it, such as half a record that a kill has left, is cut off.
    """

    def open(self, run: SinkRun, state: Any) -> None:
        """Opens the event file and cuts it to its recorded size.

        Raises:
            StateLost: The file is shorter than that, or the state is not one that `flush` returns.
        """
        modules = ("compat.proto.event_pb2", "compat.proto.summary_pb2", "summary.writer.record_writer")
        events, summaries, writer = (importlib.import_module(f"tensorboard.{name}") for name in modules)
        self._make_event, self._make_summary = events.Event, summaries.Summary
        path = run.run_dir / run_layout.TENSORBOARD / EVENT_FILE
        make_directory(path.parent)
        size = 0 if state is None else _read_size(state)
        self._file: IO[bytes] = path.open("ab")
        if self._file.tell() < size:
            raise StateLost(f"{path} has {self._file.tell():,} bytes, and {size:,} were written")
        self._file.truncate(size)
        self._file.seek(size)  # where `flush` measures; truncating leaves the position
        self._records = writer.RecordWriter(self._file)
        if size == 0:
            first = self._make_event(wall_time=time.time(), file_version=FILE_VERSION)
            self._records.write(first.SerializeToString())

    def write(self, line: SinkLine) -> None:
        """Adds a record with a scalar for each metric."""
        values = [self._make_summary.Value(tag=name, simple_value=value) for name, value in line.metrics.items()]
        summary = self._make_summary(value=values)
        event = self._make_event(wall_time=line.time, step=line.step, summary=summary)
        self._records.write(event.SerializeToString())

    def flush(self) -> dict[str, int]:
        """Brings the records to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"size": self._file.tell()}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _read_size(state: Any) -> int:
    """Returns the size in a state, which may have been received."""
    size = state.get("size") if isinstance(state, dict) else None
    if type(size) is not int or size < 0:
        raise StateLost(f"its state is damaged; expected the size of {EVENT_FILE}")
    return size
