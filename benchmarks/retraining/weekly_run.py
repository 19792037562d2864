"""A week of the simulated year: a retraining, the fault that hits it, and the command that completes it."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT

FAULTS = {"none": 0.6, "killed": 0.15, "stopped": 0.1, "damaged": 0.05, "locked": 0.1}
"""Share of the weeks with each fault."""
LOCKED_SECONDS = 15.0
TRIES = 3
"""How often an operator tries to complete a week."""


@dataclass(frozen=True)
class Week:
    """What happens in a week."""

    number: int
    wind: float
    fault: str
    """`none`; `killed` (SIGKILL); `stopped` (SIGTERM); `damaged`, which is killed with a damaged newest checkpoint; or
    `locked`, in which another program locks MLflow's database."""
    moment: float
    """When the fault comes, as a share of the time of a run."""
    config: Path
    home: Path
    environment: dict[str, str]


def run_week(week: Week, longest: float) -> tuple[dict[str, Any], float]:
    """Retrains with the week's fault, and completes what it left.

    Args:
        week: The week.
        longest: Seconds of the longest undisturbed run so far.

    Returns:
        The decision on the week's candidate, and the seconds of the run if it was undisturbed, else 0.

    Raises:
        RuntimeError: The week has no decision after some tries.
    """
    before, began = _find_runs(week.home), time.monotonic()
    with subprocess.Popen(
        _build(_build_retraining(week)), cwd=ROOT, env=week.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        if week.fault != "none":
            _strike(week, process, before, week.moment * longest)
        stdout, stderr = process.communicate()
    undisturbed = time.monotonic() - began if week.fault == "none" else 0.0
    summary, said = _read_summary(stdout), stderr
    for _ in range(TRIES):
        if summary.get("promotion"):
            if summary["unsent"]:
                run_command(["sync", summary["run_dir"]], week)
            return summary["promotion"], undisturbed
        new = sorted(_find_runs(week.home) - before)
        can_resume = new and any((new[-1] / "checkpoints").glob("step_*/manifest.json"))
        command = ["flow", "resume", str(new[-1])] if can_resume else _build_retraining(week)
        done = run_command(command, week)
        summary, said = _read_summary(done.stdout), done.stderr
    raise RuntimeError(f"week {week.number} ({week.fault}) has no decision:\n{said.decode(errors='replace')[-2000:]}")


def run_command(arguments: Sequence[str], week: Week) -> subprocess.CompletedProcess[bytes]:
    """Runs a command of rl-training in the week's home, with JSON as its output."""
    return subprocess.run(_build(arguments), cwd=ROOT, env=week.environment, capture_output=True, check=False)


def _build(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rl_training", *arguments, "--json"]


def _build_retraining(week: Week) -> list[str]:
    return ["flow", "retrain", "--config", str(week.config), "--set", f"env_kwargs.wind={week.wind!r}"]


def _strike(week: Week, process: subprocess.Popen[bytes], before: set[Path], seconds: float) -> None:
    """Waits, and lets the fault happen, unless the process has ended by then."""
    if week.fault == "locked":
        time.sleep(seconds)
        with closing(sqlite3.connect(week.home / "mlflow.db", timeout=30.0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(LOCKED_SECONDS)
            connection.execute("ROLLBACK")
        return
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM if week.fault == "stopped" else signal.SIGKILL)
        process.wait()
    new = sorted(_find_runs(week.home) - before)
    if week.fault == "damaged" and new:
        weights = sorted((new[-1] / "checkpoints").glob("step_*/policy*"))
        if weights:
            weights[-1].write_bytes(weights[-1].read_bytes()[:100])


def _find_runs(home: Path) -> set[Path]:
    return set((home / "runs").glob("*")) if (home / "runs").is_dir() else set()


def _read_summary(stdout: bytes) -> dict[str, Any]:
    lines = stdout.splitlines()
    try:
        summary: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}
    return summary
