"""Passes the lines of a metrics file on to a sink, each of them once, whatever ends the process or the sink."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from rl_training import run_layout
from rl_training.errors import USER_CODE_ERRORS
from rl_training.tracking.shipping.metrics_reader import LineReader
from rl_training.tracking.sinks.lookup import find_sink
from rl_training.tracking.sinks.progress import load_progress, make_progress, save_progress
from rl_training.tracking.sinks.sink import Sink, SinkLine, SinkRun, StateLost

logger = logging.getLogger(__name__)

BATCH = 1_000
"""Number of lines between two records of the progress."""


class Follower:
    """Passes the metrics of a run on to a sink; after an error it continues from the recorded state.

    Args:
        run: The run.
        name: The sink, as in the settings.
    """

    def __init__(self, run: SinkRun, name: str) -> None:
        self._run, self.name = run, name
        self._sink: Sink | None = None
        self._progress = make_progress()
        self._reader = LineReader(run.run_dir / run_layout.METRICS)

    def advance(self) -> bool:
        """Passes the next lines on and records the sink's state; returns whether there may be more.

        Raises:
            Exception: Any error of the sink or the disk; the next call opens the sink again.
        """
        try:
            if self._sink is None:
                self._sink = self._open()
            lines = list(islice(self._read(), BATCH))
            for line in lines:
                if line.metrics:
                    self._sink.write(line)
            if lines:
                self._record(self._sink)
        except BaseException:
            self.close()
            raise
        return len(lines) == BATCH

    def close(self) -> None:
        """Closes the sink if it is open; never raises an error of the sink."""
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(*USER_CODE_ERRORS):
                sink.close()

    def note_trouble(self, trouble: str) -> None:
        """Records why the sink can't be used now."""
        self._progress["trouble"] = trouble
        with suppress(OSError):
            save_progress(self._run.run_dir, self.name, self._progress)

    def _open(self) -> Sink:
        self._progress = load_progress(self._run.run_dir, self.name)
        sink = find_sink(self.name)()
        try:
            sink.open(self._run, self._progress["state"])
        except StateLost as error:
            logger.warning("sink %s begins again: %s", self.name, error)
            with suppress(*USER_CODE_ERRORS):
                sink.close()
            self._progress = make_progress()
            sink = find_sink(self.name)()
            sink.open(self._run, None)
        reader = self._reader
        at = self._progress
        reader.offset, reader.mark, reader.count = at["offset"], at["mark"], at["count"]
        self._sink = sink  # so that an error of the next line closes it
        self._record(sink)
        return sink

    def _read(self) -> Iterator[SinkLine]:
        for line in self._reader.read_lines():
            yield SinkLine(self._reader.count - 1, line["event"], line["step"], line["time"], line["metrics"])

    def _record(self, sink: Sink) -> None:
        reader = self._reader
        self._progress = {
            "offset": reader.offset,
            "mark": reader.mark,
            "count": reader.count,
            "state": sink.flush(),
            "trouble": "",
        }
        save_progress(self._run.run_dir, self.name, self._progress)
