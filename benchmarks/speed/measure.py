"""Speed: environment steps a second, beside other libraries on the same work, and beside what the machine can do.

Each run is a process of its own. First each contestant is tried once with one thread and once with two; with the better
count it then takes part in every round, in which all take turns. Medians are over the rounds. docs/benchmarks.md says
what the numbers are, and what is switched off.

    python -m benchmarks.speed.measure --peers .peers --rounds 5  # benchmarks/results/speed.json
    python -m benchmarks.speed.measure --peers .peers --tasks sac-pendulum  # this task alone, of all contestants
    python -m benchmarks.speed.measure --peers .peers --contestants ours sb3 --results ../speed  # fewer; kept elsewhere
    python -m benchmarks.speed.report                                              # docs/benchmarks.md, from the JSON

A task that is measured again takes the place of all that the file had of it, whoever takes part this time; the other
tasks stay.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import RESULTS, ROOT, usable_cpus
from benchmarks.speed.processes import Places, RunBroke, add_runs, measure, nobody_left, present, run_noted
from benchmarks.speed.tasks import LABELS, OURS, PEERS, SPEED, SPLIT, TRACKED, SpeedTask

NAME = "speed"
CONTESTANTS = (OURS, SPLIT, *PEERS, TRACKED)
SUMMED_UP = ("steps_per_second", "steps_per_cpu_second", "wall_seconds", "startup_seconds", "peak_memory_bytes")


def measure_task(
    task: SpeedTask, names: Sequence[str], rounds: int, threads: Sequence[int], places: Places
) -> dict[str, Any]:
    """Returns what the file holds of a task."""
    load, broken = os.getloadavg()[0], dict[str, str]()

    def attempt(name: str, count: int, seed: int) -> dict[str, Any] | None:
        try:
            return shown(measure(name, task, threads=count, seed=seed, places=places))
        except RunBroke as error:
            print(f"{task.name}: {LABELS[name]} broke: {error}", file=sys.stderr)
            broken[name] = error.reason
            return None

    tried = {name: {count: attempt(name, count, 0) for count in threads} for name in names if name != TRACKED}
    speeds = {
        name: {str(count): run["steps_per_second"] for count, run in by_count.items() if run is not None}
        for name, by_count in tried.items()
    }
    counts = {name: better(found) for name, found in speeds.items() if found}
    if TRACKED in names:
        counts[TRACKED] = counts.get(OURS, 1)
    runs, floors = [], []
    for i in range(1, rounds + 1):
        if task.floor is not None:
            floors.append(run_floor(task, counts.get(OURS, 1)))
        for name, count in in_turn(counts, i):
            if (run := attempt(name, count, i)) is not None:
                runs.append({"round": i, **run})
    return {
        "load_average": load,
        "rounds": rounds,
        "tried_threads": speeds,
        "summary": {name: summarize([run for run in runs if run["contestant"] == name]) for name in counts},
        "floors": floors,
        "broken": broken,
        "runs": runs,
        **places.provenance(),
    }


def takes_part(name: str, task: SpeedTask) -> bool:
    """Whether a contestant has a run of this task: not each is tracked or split, and no peer steps native ones."""
    own = {OURS: True, SPLIT: task.split, TRACKED: task.tracked_steps is not None}
    return own.get(name, task.base is None)


def in_turn(counts: dict[str, int], i: int) -> Iterator[tuple[str, int]]:
    """Yields each contestant once, in each round another one first."""
    names = list(counts)
    first = i % max(1, len(names))
    for name in names[first:] + names[:first]:
        yield name, counts[name]


def better(speeds: Mapping[str, float]) -> int:
    """Returns the thread count of the highest speed; of equal ones the lower count."""
    return min(map(int, speeds), key=lambda count: (-speeds[str(count)], count))


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns [median, lowest, highest] of each number over the rounds, and what else the table shows."""
    if not runs:
        return {"rounds": 0}
    names = [*SUMMED_UP, *(["orchestration"] if "orchestration" in runs[0] else [])]
    spread = {name: [f(run[name] for run in runs) for f in (median, min, max)] for name in names}
    return {
        "rounds": len(runs),
        "threads": runs[0]["threads"],
        "most_other_cpus": max(run["other_cpus"] + run["stolen_cpus"] for run in runs),
        **spread,
    }


def run_floor(task: SpeedTask, threads: int) -> dict[str, Any]:
    """Returns the floors of a task, measured in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.speed.floors", task.name, "--threads", str(threads)]
    try:
        return run_noted(command, threads)
    except RunBroke as error:
        print(error, file=sys.stderr)
        return {"broke": error.reason}


def shown(run: dict[str, Any]) -> dict[str, Any]:
    """Prints a run in a line and returns it."""
    print(
        f"{run['task']:<18} {LABELS[run['contestant']]:<22} {run['threads']} threads "
        f"{run['steps_per_second']:>10,.0f} steps/s  {run['steps_per_cpu_second']:>10,.0f} a CPU second  "
        f"{run['wall_seconds']:6.1f} s in all  "
        f"others {run['other_cpus'] + run['stolen_cpus']:.2f} CPUs",
        flush=True,
    )
    return run


def main() -> int:
    arguments = parse()
    places = Places(arguments.peers, arguments.cleanrl)
    names, whole = present(arguments.contestants, places), True
    threads = [count for count in arguments.threads if count <= usable_cpus()]
    tasks = [task for task in SPEED if task.name in arguments.tasks]
    fields = [(task, field) for task in tasks if (field := [name for name in names if takes_part(name, task)])]
    if not fields:
        return nobody_left(arguments.tasks)
    for task, field in fields:
        result = measure_task(task, field, arguments.rounds, threads, places)
        whole &= add_runs(NAME, task.name, result, arguments.results)
    return int(not whole)


def parse() -> argparse.Namespace:
    tasks = [task.name for task in SPEED]
    parser = argparse.ArgumentParser(description="Measure speed beside other libraries and the machine's floors.")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contestant (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks, help="what is trained (default: all)")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="who takes part (default: all)"
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, default=[1, 2], help="thread counts that are tried (default: 1 2)"
    )
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL; left out without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
