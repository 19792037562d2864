"""Wall-clock time until CartPole and Pendulum are solved, from the start of the process to the end of the evaluation.

Solved is the first periodic evaluation whose mean return over 10 deterministic episodes reaches the threshold. Ours
train a shipped config, the peers the settings that RL Baselines3 Zoo tuned for them; all are evaluated as often, and
the time of evaluations counts for all. A run that ends unsolved counts as never solved. For each seed, all take turns.

    python -m benchmarks.speed.solved --peers .peers --seeds 5                       # benchmarks/results/solved.json
    python -m benchmarks.speed.solved --peers .peers --tasks solved-pendulum
    python -m benchmarks.speed.report                                               # docs/benchmarks.md, from the JSON

A task that is measured again takes the place of all that the file had of it, whoever takes part this time; the other
task stays.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import RESULTS, ROOT
from benchmarks.speed.processes import Places, RunBroke, add_runs, measure, nobody_left, present
from benchmarks.speed.tasks import LABELS, OURS, PEERS, SOLVED, SolvedTask

NAME = "solved"
CONTESTANTS = (OURS, *PEERS)


def measure_task(task: SolvedTask, names: Sequence[str], seeds: int, threads: int, places: Places) -> dict[str, Any]:
    """Returns what the file holds of a task."""
    load, broken = os.getloadavg()[0], dict[str, str]()
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in [*names[seed % len(names) :], *names[: seed % len(names)]]:
            try:
                runs.append(shown(measure(name, task, threads=threads, seed=seed, places=places)))
            except RunBroke as error:
                print(f"{task.name}: {LABELS[name]} broke: {error}", file=sys.stderr)
                broken[name] = error.reason
    return {
        "load_average": load,
        "threshold": task.threshold,
        "evaluated_every": task.every,
        "summary": {name: summarize([run for run in runs if run["contestant"] == name]) for name in names},
        "broken": broken,
        "runs": runs,
        **places.provenance(),
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns [median, lowest, highest] of the seconds until solved; null stands for never."""
    seconds = [math.inf if run["solved_seconds"] is None else run["solved_seconds"] for run in runs]
    steps = [math.inf if run["solved_step"] is None else run["solved_step"] for run in runs]
    if not runs:
        return {"seeds": 0, "solved": 0}
    return {
        "seeds": len(runs),
        "solved": sum(map(math.isfinite, seconds)),
        "seconds": [_or_null(f(seconds)) for f in (median, min, max)],
        "steps": [_or_null(f(steps)) for f in (median, min, max)],
        "threads": runs[0]["threads"],
        "most_other_cpus": max(run["other_cpus"] + run["stolen_cpus"] for run in runs),
    }


def _or_null(number: float) -> float | None:
    return number if math.isfinite(number) else None


def shown(run: dict[str, Any]) -> dict[str, Any]:
    """Prints a run in a line and returns it."""
    solved = run["solved_seconds"]
    when = "never" if solved is None else f"after {solved:.1f} s, at step {run['solved_step']:,}"
    others = run["other_cpus"] + run["stolen_cpus"]
    who = f"{run['task']:<16} {LABELS[run['contestant']]:<18} seed {run['seed']}"
    print(f"{who}: solved {when}; others {others:.2f} CPUs", flush=True)
    return run


def main() -> int:
    arguments = parse()
    places = Places(arguments.peers, arguments.cleanrl)
    names, whole = present(arguments.contestants, places), True
    if not names:
        return nobody_left(arguments.tasks)
    for task in (task for task in SOLVED if task.name in arguments.tasks):
        result = measure_task(task, names, arguments.seeds, arguments.threads, places)
        whole &= add_runs(NAME, task.name, result, arguments.results)
    return int(not whole)


def parse() -> argparse.Namespace:
    tasks = [task.name for task in SOLVED]
    parser = argparse.ArgumentParser(description="Measure the time until a task is solved, beside other libraries.")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each contestant (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks, help="what is solved (default: all)")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="who takes part (default: all)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each run (default: %(default)s)")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL; left out without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
