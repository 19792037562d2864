"""Runs the trainings of a benchmark's rows, one process per CPU, and writes each row when it is complete."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness import ROOT, collect_provenance, count_cpus
from benchmarks.learning.runs import Training, copy_code, load_finished, train
from rl_training.errors import UserError

WORK = ROOT / "benchmarks" / "work"


class Row(Protocol):
    """Trainings that make one row of a table together."""

    name: str
    """The name of the row's file."""
    trainings: Sequence[Training]

    def write(self, runs: Sequence[dict[str, Any]], about: dict[str, Any], results: Path) -> Written:
        """Writes the row's JSON file.

        Args:
            runs: The result of each of the trainings.
            about: The provenance.
            results: The folder of the file.
        """


@dataclass(frozen=True)
class Written:
    """A row that has been written."""

    text: str
    """The result in words."""
    fault: str | None = None
    """What is missed, if something is."""


def run_rows(rows: Sequence[Row], code: str, work: Path, results: Path, *, fresh: bool = False) -> list[str]:
    """Trains what is not finished, writes each row after its last training, and returns all faults.

    A stop by SIGINT or SIGTERM ends this process with exit code 130; the finished trainings are kept.

    Args:
        rows: The rows; their trainings are started in this order.
        code: `hash_code()` of the package.
        work: The folder of the finished trainings.
        results: The folder of the rows.
        fresh: Whether finished trainings are repeated.
    """
    bench = Bench(rows, collect_provenance() | {"code_sha256": code}, work, results, copy_code(work, code))
    if not fresh:
        bench.load()
    try:
        asyncio.run(bench.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; the finished trainings are kept, and the same command continues", file=sys.stderr)
        sys.exit(130)
    return bench.faults


def count_finished(row: Row, work: Path) -> int:
    """Returns how many of a row's trainings are finished."""
    return sum((work / f"{training.key()}.json").exists() for training in row.trainings)


@dataclass
class Bench:
    """Trains what has no result yet, and writes each row after its last training."""

    rows: Sequence[Row]
    about: dict[str, Any]
    work: Path
    results: Path
    package: Path
    """The folder with the copy of the package."""
    faults: list[str] = field(default_factory=list)
    """Trainings that failed, and scores that were missed."""

    def __post_init__(self) -> None:
        self._runs: dict[str, dict[str, Any]] = {}
        self._written: set[str] = set()
        self._began = time.monotonic()
        self._free = asyncio.Semaphore(count_cpus())
        # A training that several rows share is trained once.
        self._trainings = {training.key(): training for row in self.rows for training in row.trainings}
        self._keys = {row.name: [training.key() for training in row.trainings] for row in self.rows}

    def load(self) -> None:
        """Loads the results of finished trainings."""
        found = {key: load_finished(training, self.work) for key, training in self._trainings.items()}
        self._runs.update({key: run for key, run in found.items() if run is not None})

    async def run(self) -> None:
        """Runs all missing trainings; one that fails does not stop the others."""
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        missing = {key: training for key, training in self._trainings.items() if key not in self._runs}
        print(f"{len(self._runs)} trainings are finished, {len(missing)} to run, {count_cpus()} at a time", flush=True)
        self._write_complete_rows()
        async with asyncio.TaskGroup() as group:
            for key, training in missing.items():
                group.create_task(self._train(key, training))

    async def _train(self, key: str, training: Training) -> None:
        async with self._free:
            try:
                run = await train(training, self.work, self.package)
            except (RuntimeError, UserError) as error:
                self._print(f"{training.name} seed {training.number}: failed: {error}")
                self.faults.append(f"{training.name}: seed {training.number} failed, so its row is not written")
                return
        self._runs[key] = run
        self._print(f"{training.name} seed {training.number}: {run['return_mean']:.2f}")
        self._write_complete_rows()

    def _write_complete_rows(self) -> None:
        for row in self.rows:
            keys = self._keys[row.name]
            if row.name in self._written or not all(key in self._runs for key in keys):
                continue
            written = row.write([self._runs[key] for key in keys], self.about, self.results)
            self._written.add(row.name)
            self._print(f"{row.name}: {written.text}")
            if written.fault is not None:
                self.faults.append(f"{row.name}: {written.fault}")

    def _print(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)
