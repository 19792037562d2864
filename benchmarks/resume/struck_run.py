"""A training run that is struck repeatedly, and resumed in a new process each time, until it is complete."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from signal import Signals
from typing import Any

from benchmarks.resume.strikes import CLOSED_PIPE, KILL, KINDS, Process, Strike, read_newest_step
from rl_training.run_layout import STAGING
from rl_training.runtime.checkpoint import list_checkpoints

STOPPED, USER_ERROR = 75, 2
EXIT_SECONDS, CHECKPOINT_SECONDS = 25.0, 10.0
"""Most seconds from SIGTERM or SIGHUP until the process has ended, and until its checkpoint is on disk."""


@dataclass
class StruckRun:
    """A run, and a record of all its strikes.

    Args:
        python: The Python interpreter.
        train: The arguments of `python` that start the run; its settings name `run_dir`.
        run_dir: The run's directory.
        home: A directory for the output of the processes.
        environment: Environment variables of the processes.
        warm_up: Steps before the first update.
    """

    python: str
    train: Sequence[str]
    run_dir: Path
    home: Path
    environment: dict[str, str]
    warm_up: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    records: list[dict[str, Any]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    living: Process | None = None
    """The process that continues to train after its pipe was closed."""

    def run(self, strikes: Sequence[Strike]) -> dict[str, Any]:
        """Delivers all strikes, and trains the run to its end; returns the record with every fault."""
        for strike in strikes:
            self._deliver(strike)
            if self.faults:
                break
        while not self.faults:
            process = self._next_process()
            if process.wait() == 0:
                self._count_left_over(process)
                break
            self._handle_end(process)
        return self._make_result()

    def _next_process(self) -> Process:
        """Returns the process that still trains, or resumes the run, or starts it if it does not exist."""
        if self.living is not None:
            living, self.living = self.living, None
            return living
        exists = self.run_dir.exists()
        words = ["-m", "rl_training", "resume", str(self.run_dir), "--no-track"] if exists else self.train
        self.counts["resumes" if exists else "starts"] += 1
        return Process([self.python, *words], self.run_dir, self.home, self.environment)

    def _deliver(self, strike: Strike) -> None:
        while not self.faults:
            process = self._next_process()
            try:
                if process.wait_for(strike):
                    self._strike(process, strike)
                    return
                if self._handle_end(process):  # complete before the strike, so strike the next start
                    self.counts["complete_before_their_strike"] += 1
                    strike = replace(strike, place="start-up")
            finally:
                if process.exit_code is None and process is not self.living:
                    process.kill()

    def _strike(self, process: Process, strike: Strike) -> None:
        seen, was_training, phase = read_newest_step(self.run_dir), process.is_training(), process.find_phase()
        if phase == "collection" and seen < self.warm_up:
            phase = "warm-up"
        if strike.kind == CLOSED_PIPE:
            process.close_pipe()
            self.records.append({**asdict(strike), "phase": phase, "recorded_step": seen})
            self.living = process
            return
        sent, seconds = process.strike(strike.kind)
        newest, written = self._newest_checkpoint()
        record = {
            **asdict(strike),
            "phase": phase,
            "recorded_step": seen,
            "exit_code": process.exit_code,
            "seconds_to_exit": round(seconds, 3),
            "seconds_to_checkpoint": round(max(0.0, written - sent), 3),
            "save_cut_off": any(self.run_dir.glob(f"*/{STAGING}*")),
            "checkpoint_step": newest,
        }
        self.records.append(record)
        self._count_left_over(process)
        self._check(record, was_training, process)

    def _check(self, record: dict[str, Any], was_training: bool, process: Process) -> None:
        code, what = record["exit_code"], f"strike {len(self.records)} ({record['kind']} in {record['phase']})"
        if record["kind"] == KILL:
            if code != -9:
                self.faults.append(f"{what}: exit code {code}")
            return
        if code != STOPPED and (was_training or code != -Signals[record["kind"]]):
            self.faults.append(f"{what}: exit code {code}, expected {STOPPED}: {process.output()[-1000:]}")
        if record["seconds_to_exit"] > EXIT_SECONDS or record["seconds_to_checkpoint"] > CHECKPOINT_SECONDS:
            self.faults.append(
                f"{what}: {record['seconds_to_exit']} s until its end, {record['seconds_to_checkpoint']} s to save"
            )
        trained = read_newest_step(self.run_dir)
        # Steps that an earlier, killed process recorded do not count: this process may not have reached them.
        if code == STOPPED and trained > process.found_step and (record["checkpoint_step"] or 0) < trained:
            self.faults.append(f"{what}: saved at {record['checkpoint_step']}, trained to {trained}")

    def _handle_end(self, process: Process) -> bool:
        """Handles a process that ended without a strike; returns whether the run is complete."""
        self._count_left_over(process)
        lines = [line for line in process.output().splitlines() if line.startswith("error: ")]
        if process.exit_code == 0:
            return True
        refused = process.exit_code == USER_ERROR and self._newest_checkpoint()[0] is None
        if refused and len(lines) == 1:  # struck before the first checkpoint, so there is nothing to resume
            self.refusals[lines[0].replace(str(self.run_dir), "RUN_DIR")] += 1
            shutil.rmtree(self.run_dir)
        else:
            self.faults.append(f"ended by itself with exit code {process.exit_code}: {process.output()[-1000:]}")
        return False

    def _newest_checkpoint(self) -> tuple[int | None, float]:
        """Returns the step of the newest checkpoint, and when its last file was written (in seconds since 1970)."""
        found, _ = list_checkpoints(self.run_dir / "checkpoints")
        if not found:
            return None, 0.0
        return found[0].num_timesteps, (found[0].path / "manifest.json").stat().st_mtime

    def _count_left_over(self, process: Process) -> None:
        if left := process.end_left_over():
            self.counts["processes_left_over"] += left
            self.faults.append(f"{left} processes left over after strike {len(self.records)}")

    def _make_result(self) -> dict[str, Any]:
        if stubs := find_stubs(self.run_dir):
            self.faults.append(f"files left in the run's directory: {stubs}")
        ended = [record for record in self.records if record["kind"] != CLOSED_PIPE]
        asked = [record for record in ended if record["kind"] != KILL]
        return {
            **{kind: sum(record["kind"] == kind for record in self.records) for kind in KINDS},
            "phases": dict(Counter(record["phase"] for record in self.records).most_common()),
            "exit_codes": dict(Counter(str(record["exit_code"]) for record in ended)),
            "saves_cut_off": sum(record["save_cut_off"] for record in ended),
            **{name: self.counts[name] for name in ("starts", "resumes", "complete_before_their_strike")},
            "refused_resumes": self.refusals.total(),
            "refusals": dict(self.refusals),
            "processes_left_over": self.counts["processes_left_over"],
            "stubs_left": stubs,
            "seconds_from_signal_to_exit_max": max((record["seconds_to_exit"] for record in asked), default=None),
            "seconds_from_signal_to_checkpoint_max": max(
                (record["seconds_to_checkpoint"] for record in asked), default=None
            ),
            "faults": self.faults,
            "strikes": self.records,
        }


def find_stubs(run_dir: Path) -> list[str]:
    """Returns the files that a finished run should not have: partially written, set aside, or outdated."""
    checkpoints = run_dir / "checkpoints"
    odd = [
        path
        for path in [*run_dir.rglob(".*"), *run_dir.rglob("*.tmp*"), *checkpoints.glob("*")]
        if path.parent != checkpoints or not (path.name.startswith("step_") or path.name == "best.json")
    ]
    found, _ = list_checkpoints(checkpoints)
    named = json.loads((found[0].path / "manifest.json").read_text())["files"] if found else {}
    odd += [path for path in run_dir.glob("replay/*") if path.name not in named]
    return sorted({str(path.relative_to(run_dir)) for path in odd})
