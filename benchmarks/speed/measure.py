"""Measures environment steps per second, compared with other libraries and with the limits of the machine.

Each run is a separate process. Each contestant first runs once with one thread and once with two, and then takes part
in every round with the better thread count. In each round, the contestants take turns. Medians are over the rounds.
docs/benchmarks.md explains the numbers, and lists what is switched off.

    python -m benchmarks.speed.measure --peers .peers --rounds 5  # benchmarks/results/speed.json
    python -m benchmarks.speed.measure --peers .peers --tasks sac-pendulum  # only this task
    python -m benchmarks.speed.measure --peers .peers --contestants ours sb3 --results ../speed
    python -m benchmarks.speed.report                                              # docs/benchmarks.md, from the JSON

A new measurement of a task replaces all earlier results of that task in the file; other tasks are kept.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import count_cpus
from benchmarks.speed.processes import Places, compare, make_parser, try_measure, try_recorded
from benchmarks.speed.tasks import IMPORTS, LABELS, OURS, PEERS, SPEED, SPLIT, TRACKED, SpeedTask

NAME = "speed"
CONTESTANTS = (OURS, SPLIT, *PEERS, TRACKED)
SUMMED_UP = ("steps_per_second", "steps_per_cpu_second", "wall_seconds", "startup_seconds", "peak_memory_bytes")
OF_SOME = ("orchestration", "compile_seconds", "with_compilation")
"""Numbers that only some contestants have."""


def measure_task(
    task: SpeedTask, names: Sequence[str], arguments: argparse.Namespace, places: Places
) -> dict[str, Any]:
    """Returns the results of a task, as they are written to the file."""
    load, broken = os.getloadavg()[0], dict[str, str]()

    def attempt(name: str, count: int, seed: int) -> dict[str, Any] | None:
        run = try_measure(name, task, broken, threads=count, seed=seed, places=places)
        if run is not None:
            print(describe_run(run), flush=True)
        return run

    threads = [count for count in arguments.threads if count <= count_cpus()]
    tried = {name: {count: attempt(name, count, 0) for count in threads} for name in names if name != TRACKED}
    speeds = {
        name: {str(count): run["steps_per_second"] for count, run in by_count.items() if run is not None}
        for name, by_count in tried.items()
    }
    counts = {name: choose_threads(found) for name, found in speeds.items() if found}
    if TRACKED in names:
        counts[TRACKED] = counts.get(OURS, 1)
    runs, floors, imports = [], [], []
    for i in range(1, arguments.rounds + 1):
        imports.append(
            try_recorded(f"{task.name}: {LABELS[IMPORTS]}", ["-m", "benchmarks.speed.runners.bare_imports"], 1)
        )
        if task.floor is not None:
            count = counts.get(OURS, 1)
            command = ["-m", "benchmarks.speed.floors", task.name, "--threads", str(count)]
            floors.append(try_recorded(f"{task.name}: the floor", command, count))
        for name, count in rotate(counts, i):
            if (run := attempt(name, count, i)) is not None:
                runs.append({"round": i, **run})
    return {
        "load_average": load,
        "rounds": arguments.rounds,
        "tried_threads": speeds,
        "summary": {name: summarize([run for run in runs if run["contestant"] == name]) for name in counts},
        "floors": floors,
        "imports": imports,
        "broken": broken,
        "runs": runs,
        **places.collect_provenance(),
    }


def takes_part(name: str, task: SpeedTask) -> bool:
    """Tells whether a contestant runs this task: some are not tracked or split, and not every peer can train all."""
    own = {OURS: True, SPLIT: task.split, TRACKED: task.tracked_steps is not None}
    return own.get(name, name in task.peers)


def rotate(counts: dict[str, int], i: int) -> Iterator[tuple[str, int]]:
    """Yields each contestant once; each round begins with another one."""
    names = list(counts)
    first = i % max(1, len(names))
    for name in names[first:] + names[:first]:
        yield name, counts[name]


def choose_threads(speeds: Mapping[str, float]) -> int:
    """Returns the thread count with the highest speed; if two speeds are equal, the lower count."""
    return min(map(int, speeds), key=lambda count: (-speeds[str(count)], count))


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns [median, lowest, highest] of each number over the rounds, and the other numbers of the table."""
    if not runs:
        return {"rounds": 0}
    names = [*SUMMED_UP, *(name for name in OF_SOME if name in runs[0])]
    spread = {name: [f(run[name] for run in runs) for f in (median, min, max)] for name in names}
    return {
        "rounds": len(runs),
        "threads": runs[0]["threads"],
        "most_other_cpus": max(run["other_cpus"] + run["stolen_cpus"] for run in runs),
        **spread,
    }


def describe_run(run: dict[str, Any]) -> str:
    """Returns a line about a run."""
    return (
        f"{run['task']:<18} {LABELS[run['contestant']]:<22} {run['threads']} threads "
        f"{run['steps_per_second']:>10,.0f} steps/s  {run['steps_per_cpu_second']:>10,.0f} per CPU second  "
        f"{run['wall_seconds']:6.1f} s in total  "
        f"others {run['other_cpus'] + run['stolen_cpus']:.2f} CPUs"
    )


def main() -> int:
    parser = make_parser("Compare the speed with other libraries and the machine's limits.", SPEED, CONTESTANTS)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contestant (default: %(default)s)")
    parser.add_argument(
        "--threads", nargs="+", type=int, default=[1, 2], help="thread counts to choose from (default: 1 2)"
    )
    return compare(NAME, SPEED, takes_part, measure_task, parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
