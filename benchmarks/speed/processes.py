"""Starts the runs that are measured, each in a process of its own, and notes what else the machine did meanwhile."""

from __future__ import annotations

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

from benchmarks.provenance import ROOT, provenance, write_json
from benchmarks.speed.tasks import LABELS, OURS, PEERS, SPLIT, TRACKED, Task

MODULES = {
    OURS: "ours",
    SPLIT: "ours",
    TRACKED: "ours",
    "sb3": "sb3",
    "sbx": "sb3",
    "cleanrl": "cleanrl",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RunBroke(Exception):
    """A measured process failed; the message ends with what it wrote to stderr."""

    @property
    def reason(self) -> str:
        """The last line of that."""
        return str(self).rstrip().rpartition("\n")[2]


@dataclass(frozen=True)
class Places:
    """Where the peers are."""

    peers: Path
    """A folder with a virtual environment for each."""
    cleanrl: Path | None
    """A checkout of CleanRL."""

    def python(self, contestant: str) -> Path:
        """Returns the interpreter that runs a contestant."""
        return self.peers / contestant / "bin" / "python" if contestant in PEERS else Path(sys.executable)

    def missing(self, contestant: str) -> str | None:
        """Returns why a contestant can't take part; None where it can."""
        if not self.python(contestant).exists():
            return f"there is no {self.python(contestant)}"
        if contestant == "cleanrl" and not (self.cleanrl and (self.cleanrl / "cleanrl").is_dir()):
            return "CLEANRL names no checkout of it"
        return None

    def provenance(self) -> dict[str, Any]:
        """Returns command, versions, commit and machine; the command without this machine's folders."""
        noted = provenance()
        for name, folder in (("CLEANRL", self.cleanrl), ("PEERS", self.peers)):
            noted["command"] = noted["command"].replace(str(folder), name)
        return noted


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds so far, summed over all CPUs."""

    busy: float
    """Of the whole machine."""
    stolen: float
    """Taken by the host of a virtual machine."""
    children: float
    """Of the processes that this one has started and waited for."""


def measure(contestant: str, task: Task, *, threads: int, seed: int, places: Places) -> dict[str, Any]:
    """Runs one contestant on one task; returns what its script printed, and what `run_noted` notes.

    Raises:
        RunBroke: Its process failed.
    """
    words = [
        "-m",
        f"benchmarks.speed.{MODULES[contestant]}",
        contestant,
        task.name,
        "--threads",
        str(threads),
        "--seed",
        str(seed),
    ]
    own = {} if places.cleanrl is None else {"CLEANRL": str(places.cleanrl.resolve())}
    return run_noted([str(places.python(contestant)), *words], threads, own, clocked=True)


def run_noted(
    command: list[str], threads: int, variables: dict[str, str] | None = None, *, clocked: bool = False
) -> dict[str, Any]:
    """Runs a command in a home of its own; returns the JSON on its last line, and beside it some numbers.

    - `wall_seconds`: of the whole process, start-up included; `cpu_seconds` of all its threads;
    - `other_cpus`: how many CPUs other processes used meanwhile, and `stolen_cpus` the host of a virtual machine;
    - `load_average`: before, over a minute.

    Args:
        command: What to run.
        threads: Of the libraries that compute.
        variables: Set besides.
        clocked: Whether it is told when it was started, as `--began`.

    Raises:
        RunBroke: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="speed-") as home:
        own = {name: str(threads) for name in THREAD_VARIABLES} | {"RL_TRAINING_HOME": home, **(variables or {})}
        kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        load, before, began = os.getloadavg()[0], cpu_times(), time.time()
        told = ["--began", repr(began)] if clocked else []
        ended = subprocess.run([*command, *told], env=kept | own, cwd=ROOT, capture_output=True, text=True)
        wall, after = time.time() - began, cpu_times()
    if ended.returncode != 0:
        raise RunBroke(f"{shlex.join(command)} ended with exit code {ended.returncode}:\n{ended.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result | {"wall_seconds": wall, "load_average": load, **used(before, after, wall)}


def used(before: CpuTimes, after: CpuTimes, wall: float) -> dict[str, float]:
    """Returns what the started process used between two readings, and what others did."""
    own = after.children - before.children
    return {
        "cpu_seconds": own,
        "other_cpus": max(0.0, after.busy - before.busy - own) / wall,
        "stolen_cpus": (after.stolen - before.stolen) / wall,
    }


def cpu_times() -> CpuTimes:
    """Returns the CPU times up to now."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    ticks, own = os.sysconf("SC_CLK_TCK"), resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTimes((user + nice + system + irq + softirq) / ticks, stolen / ticks, own.ru_utime + own.ru_stime)


def present(names: Sequence[str], places: Places) -> list[str]:
    """Returns the contestants that can take part, and says of the others why they can't."""
    missing = {name: why for name in names if (why := places.missing(name)) is not None}
    for name, why in missing.items():
        print(f"{LABELS[name]} is left out: {why}")
    return [name for name in names if name not in missing]


def nobody_left(tasks: Sequence[str]) -> int:
    """Says that nothing is measured; returns the exit status."""
    print(f"no contestant is left for {', '.join(tasks)}: nothing was measured, nothing is written", file=sys.stderr)
    return 2


def add_runs(name: str, task: str, result: dict[str, Any], folder: Path) -> bool:
    """Puts a task's results into `NAME.json` if a run of it came to its end; returns whether all did."""
    if result["runs"]:
        add_to_file(name, task, result, folder)
    else:
        print(f"{task}: no run came to its end; nothing is written", file=sys.stderr)
    return bool(result["runs"]) and not result["broken"]


def add_to_file(name: str, part: str, result: dict[str, Any], folder: Path) -> None:
    """Puts one part of a benchmark's results into `NAME.json` in place of an older one; the other parts in it stay."""
    path = folder / f"{name}.json"
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    print(f"written: {write_json(name, {'benchmark': name, 'parts': parts | {part: result}}, folder)}")
