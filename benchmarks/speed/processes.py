"""Runs each measured training in its own process, and records what else the machine did at the same time."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import RESULTS, ROOT, collect_provenance, run_json, write_json
from benchmarks.speed.tasks import LABELS, PEERS, Task

PEER_SCRIPTS = {name: name for name in PEERS} | {"sbx": "sb3"}
"""The script `run_NAME.py` of each peer."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Places:
    """The folders of the peers' installations."""

    peers: Path
    """A folder with a virtual environment for each peer."""
    cleanrl: Path | None
    """A checkout of CleanRL, or None to leave CleanRL out."""

    def find_python(self, contestant: str) -> Path:
        """Returns the interpreter that runs a contestant."""
        return self.peers.absolute() / contestant / "bin" / "python" if contestant in PEERS else Path(sys.executable)

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


def try_measure(
    contestant: str, task: Task, broken: dict[str, str], *, threads: int, seed: int, places: Places
) -> dict[str, Any] | None:
    """Runs one contestant on one task, and returns the numbers; records a failure in `broken`, and returns None for it.

    The numbers are those of the contestant's script and of `run_recorded`.
    """
    own = {} if places.cleanrl is None else {"CLEANRL": str(places.cleanrl.resolve())}
    script = f"benchmarks.speed.runners.run_{PEER_SCRIPTS.get(contestant, 'ours')}"
    flags = ["--threads", str(threads), "--seed", str(seed), "--began", repr(time.time())]
    words = ["-m", script, contestant, task.name, *flags]
    run = try_recorded(f"{task.name}: {LABELS[contestant]}", words, threads, own, places.find_python(contestant))
    if "broke" in run:
        broken[contestant] = run["broke"]
        return None
    return run


def try_recorded(what: str, *command: Any) -> dict[str, Any]:
    """Runs a command as `run_recorded` does; prints a failure, and returns its last line as `broke`."""
    try:
        return run_recorded(*command)
    except RuntimeError as error:
        print(f"{what} failed: {error}", file=sys.stderr)
        return {"broke": str(error).rstrip().rpartition("\n")[2]}


def run_recorded(
    arguments: Sequence[str],
    threads: int,
    variables: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
) -> dict[str, Any]:
    """Runs a Python command in its own home, as `run_json` does; returns its JSON with additional numbers.

    The home is also its working directory, because MuJoCo writes a log there.

    - `wall_seconds`: wall time of the complete process, including its start-up; `cpu_seconds`: of all its threads;
    - `other_cpus`, `stolen_cpus`: CPUs that other processes, and the host of a virtual machine, used in the meantime;
    - `load_average`: one-minute load average before the run.
    """
    own = {name: str(threads) for name in THREAD_VARIABLES} | {"PYTHONPATH": str(ROOT)} | dict(variables or {})
    with tempfile.TemporaryDirectory(prefix="speed-") as home:
        load, before, began = os.getloadavg()[0], read_cpu_times(), time.time()
        result = run_json(arguments, Path(home), cwd=Path(home), variables=own, python=python)
        wall, after = time.time() - began, read_cpu_times()
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


def make_parser(description: str, tasks: Sequence[Task], contestants: Sequence[str]) -> argparse.ArgumentParser:
    """Returns a parser with the options that the benchmarks of several contestants share."""
    parser, names = argparse.ArgumentParser(description=description), [task.name for task in tasks]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, help="tasks to train (default: all)")
    parser.add_argument(
        "--contestants", nargs="+", choices=contestants, default=contestants, help="who takes part (default: all)"
    )
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL, which is left out otherwise")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    return parser


def compare(
    name: str,
    tasks: Iterable[T],
    takes_part: Callable[[str, T], bool],
    measure_task: Callable[[T, list[str], argparse.Namespace, Places], dict[str, Any]],
    arguments: argparse.Namespace,
) -> int:
    """Measures the chosen tasks with everyone who can take part; writes `NAME.json`, and returns the exit code."""
    places, present, whole = Places(arguments.peers, arguments.cleanrl), [], True
    for who in arguments.contestants:
        if (why := places.find_missing(who)) is None:
            present.append(who)
        else:
            print(f"{LABELS[who]} is left out: {why}")
    chosen = [task for task in tasks if task.name in arguments.tasks]
    fields = [(task, field) for task in chosen if (field := [who for who in present if takes_part(who, task)])]
    if not fields:
        names = ", ".join(arguments.tasks)
        print(f"no contestant is left for {names}: nothing was measured, nothing is written", file=sys.stderr)
        return 2
    for task, field in fields:
        whole &= add_runs(name, task.name, measure_task(task, field, arguments, places), arguments.results)
    return int(not whole)


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
