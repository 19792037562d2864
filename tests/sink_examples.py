"""Sinks for the tests: one that keeps lines in a file, and some that fail."""

import json
import os
from pathlib import Path

from rl_training.tracking.sinks import Sink, StateLost


class FileSink(Sink):
    """Writes each line to `RUN_DIR/copy.jsonl`; its state is the size of the file."""

    def open(self, run, state):
        self.path = run.run_dir / "copy.jsonl"
        size = state["size"] if state is not None else 0
        if (self.path.exists() and self.path.stat().st_size < size) or (not self.path.exists() and size):
            raise StateLost("shorter")
        self.file = self.path.open("ab")
        self.file.truncate(size)
        self.file.seek(size)

    def write(self, line):
        text = {"number": line.number, "event": line.event, "step": line.step, "time": line.time}
        self.file.write((json.dumps({**text, "metrics": dict(line.metrics)}) + "\n").encode())

    def flush(self):
        self.file.flush()
        return {"size": self.file.tell()}

    def close(self):
        self.file.close()


class KilledSink(FileSink):
    """Is killed once, with a part of what it writes on disk."""

    def write(self, line):
        super().write(line)
        mark = self.path.with_suffix(".killed")
        if line.number == 3 and not mark.exists():
            mark.touch()
            self.file.flush()
            os.kill(os.getpid(), 9)


class BrokenSink(Sink):
    """Can't be opened."""

    def open(self, run, state):
        raise ConnectionError("no such server")

    def write(self, line):
        raise AssertionError("it is not open")


class HangingSink(Sink):
    """Never returns from `write`."""

    def write(self, line):
        import time

        (Path(os.environ["HANGS"])).touch()
        time.sleep(10_000)


class Unfit:
    """Is no sink."""
