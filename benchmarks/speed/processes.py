"""Runs each measured training in its own process, and records what else the machine did at the same time."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, collect_provenance, write_json
from benchmarks.speed.tasks import LABELS, OURS, PEERS, SPLIT, TRACKED, Task

MODULES = {OURS: "ours", SPLIT: "ours", TRACKED: "ours", "sb3": "sb3", "sbx": "sb3", "cleanrl": "cleanrl"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class MeasurementFailed(Exception):
    """A measured process failed; the message ends with the end of its stderr."""

    @property
    def reason(self) -> str:
        """The last line of the message."""
        return str(self).rstrip().rpartition("\n")[2]


@dataclass(frozen=True)
class Places:
    """Where the peers are installed."""

    peers: Path
    """A folder with a virtual environment for each peer."""
    cleanrl: Path | None
    """A checkout of CleanRL, or None to leave CleanRL out."""

    def find_python(self, contestant: str) -> Path:
        """Returns the interpreter that runs a contestant."""
        return self.peers / contestant / "bin" / "python" if contestant in PEERS else Path(sys.executable)

    def find_missing(self, contestant: str) -> str | None:
        """Returns why a contestant can't take part, or None if it can."""
        if not self.find_python(contestant).exists():
            return f"there is no {self.find_python(contestant)}"
        if contestant == "cleanrl" and not (self.cleanrl and (self.cleanrl / "cleanrl").is_dir()):
            return "CLEANRL is not the path of a checkout"
        return None

    def collect_provenance(self) -> dict[str, Any]:
        """Returns the provenance, with names in place of this machine's folders in the command."""
        provenance = collect_provenance()
        for name, folder in (("CLEANRL", self.cleanrl), ("PEERS", self.peers)):
            provenance["command"] = provenance["command"].replace(str(folder), name)
        return provenance


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds until now, summed over all CPUs."""

    busy: float
    """Time in which the CPUs of the machine were busy."""
    stolen: float
    """Time that the host of a virtual machine took."""
    children: float
    """Time of the child processes that have ended."""


def measure(contestant: str, task: Task, *, threads: int, seed: int, places: Places) -> dict[str, Any]:
    """Runs one contestant on one task; returns the results of its script and of `run_recorded`.

    Raises:
        MeasurementFailed: The process failed.
    """
    module, flags = f"benchmarks.speed.{MODULES[contestant]}", ["--threads", str(threads), "--seed", str(seed)]
    words = ["-m", module, contestant, task.name, *flags]
    own = {} if places.cleanrl is None else {"CLEANRL": str(places.cleanrl.resolve())}
    return run_recorded([str(places.find_python(contestant)), *words], threads, own, clocked=True)


def try_measure(
    contestant: str, task: Task, broken: dict[str, str], *, threads: int, seed: int, places: Places
) -> dict[str, Any] | None:
    """Runs one contestant as `measure` does; prints and records a failure in `broken`, and returns None for it."""
    try:
        return measure(contestant, task, threads=threads, seed=seed, places=places)
    except MeasurementFailed as error:
        print(f"{task.name}: {LABELS[contestant]} failed: {error}", file=sys.stderr)
        broken[contestant] = error.reason
        return None


def run_recorded(
    command: list[str], threads: int, variables: dict[str, str] | None = None, *, clocked: bool = False
) -> dict[str, Any]:
    """Runs a command in its own home; returns the JSON on the last line of its output, and additional numbers.

    - `wall_seconds`: wall time of the complete process, including its start-up; `cpu_seconds`: of all its threads;
    - `other_cpus`, `stolen_cpus`: CPUs that other processes, and the host of a virtual machine, used in the meantime;
    - `load_average`: one-minute load average before the run.

    Args:
        command: The command to run.
        threads: Number of threads of the numeric libraries.
        variables: Additional environment variables.
        clocked: Whether to pass the start time as `--began`.

    Raises:
        MeasurementFailed: The command failed.
    """
    with tempfile.TemporaryDirectory(prefix="speed-") as home:
        own = {name: str(threads) for name in THREAD_VARIABLES} | {"RL_TRAINING_HOME": home, **(variables or {})}
        kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        load, before, began = os.getloadavg()[0], read_cpu_times(), time.time()
        start = ["--began", repr(began)] if clocked else []
        ended = subprocess.run([*command, *start], env=kept | own, cwd=ROOT, capture_output=True, text=True)
        wall, after = time.time() - began, read_cpu_times()
    if ended.returncode != 0:
        raise MeasurementFailed(
            f"{shlex.join(command)} ended with exit code {ended.returncode}:\n{ended.stderr[-1500:]}"
        )
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result | {"wall_seconds": wall, "load_average": load, **compute_usage(before, after, wall)}


def compute_usage(before: CpuTimes, after: CpuTimes, wall: float) -> dict[str, float]:
    """Returns the CPU usage of the child process, and of others, between two readings."""
    own = after.children - before.children
    return {
        "cpu_seconds": own,
        "other_cpus": max(0.0, after.busy - before.busy - own) / wall,
        "stolen_cpus": (after.stolen - before.stolen) / wall,
    }


def read_cpu_times() -> CpuTimes:
    """Returns the CPU times until now."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    ticks, own = os.sysconf("SC_CLK_TCK"), resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTimes((user + nice + system + irq + softirq) / ticks, stolen / ticks, own.ru_utime + own.ru_stime)


def find_present(names: Sequence[str], places: Places) -> list[str]:
    """Returns the contestants that can take part, and prints why the others can't."""
    missing = {name: why for name in names if (why := places.find_missing(name)) is not None}
    for name, why in missing.items():
        print(f"{LABELS[name]} is left out: {why}")
    return [name for name in names if name not in missing]


def add_arguments(parser: argparse.ArgumentParser, tasks: Sequence[Task], contestants: Sequence[str]) -> None:
    """Adds the options that the benchmarks of several contestants share."""
    names = [task.name for task in tasks]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, help="tasks to train (default: all)")
    parser.add_argument(
        "--contestants", nargs="+", choices=contestants, default=contestants, help="who takes part (default: all)"
    )
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL, which is left out otherwise")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")


def report_no_contestants(tasks: Sequence[str]) -> int:
    """Prints that nothing is measured; returns the exit code."""
    print(f"no contestant is left for {', '.join(tasks)}: nothing was measured, nothing is written", file=sys.stderr)
    return 2


def add_runs(name: str, task: str, result: dict[str, Any], folder: Path) -> bool:
    """Writes a task's results to `NAME.json` if at least one run succeeded; returns whether all succeeded."""
    if result["runs"]:
        add_to_file(name, task, result, folder)
    else:
        print(f"{task}: no run succeeded; nothing is written", file=sys.stderr)
    return bool(result["runs"]) and not result["broken"]


def add_to_file(name: str, part: str, result: dict[str, Any], folder: Path) -> None:
    """Replaces one part of a benchmark's results in `NAME.json`; other parts are kept."""
    path = folder / f"{name}.json"
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    print(f"written: {write_json(name, {'benchmark': name, 'parts': parts | {part: result}}, folder)}")
