"""Measures the wall time until CartPole and Pendulum are solved, from the start of the process.

A task is solved at the end of the first periodic evaluation whose mean return over 10 deterministic episodes reaches
the threshold. We train a shipped config; the peers train the settings that RL Baselines3 Zoo has tuned for them. All
are evaluated equally often, and the time of evaluations counts for all. A run that ends without solving the task counts
as never solved. For each seed, the contestants take turns.

    python -m benchmarks.speed.time_until_solved --peers .peers --seeds 5   # writes benchmarks/results/solved.json
    python -m benchmarks.speed.time_until_solved --peers .peers --tasks solved-pendulum
    python -m benchmarks.speed.report                                       # docs/benchmarks.md, from the JSON

A new measurement of a task replaces all earlier results of that task in the file; the other task is kept.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.speed.processes import Places, compare, make_parser, try_measure
from benchmarks.speed.tasks import LABELS, OURS, SOLVED, SolvedTask

NAME = "solved"
CONTESTANTS = (OURS, "sb3", "sbx", "cleanrl")


def measure_task(
    task: SolvedTask, names: Sequence[str], arguments: argparse.Namespace, places: Places
) -> dict[str, Any]:
    """Returns the results of a task, as they are written to the file."""
    load, broken = os.getloadavg()[0], dict[str, str]()
    runs: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        for name in [*names[seed % len(names) :], *names[: seed % len(names)]]:
            run = try_measure(name, task, broken, threads=arguments.threads, seed=seed, places=places)
            if run is not None:
                print(describe_run(run), flush=True)
                runs.append(run)
    return {
        "load_average": load,
        "threshold": task.threshold,
        "evaluated_every": task.every,
        "summary": {name: summarize([run for run in runs if run["contestant"] == name]) for name in names},
        "broken": broken,
        "runs": runs,
        **places.collect_provenance(),
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns [median, lowest, highest] of the seconds until solved; None stands for never."""
    seconds = [math.inf if run["solved_seconds"] is None else run["solved_seconds"] for run in runs]
    steps = [math.inf if run["solved_step"] is None else run["solved_step"] for run in runs]
    if not runs:
        return {"seeds": 0, "solved": 0}
    spread = {
        name: [number if math.isfinite(number := f(values)) else None for f in (median, min, max)]
        for name, values in (("seconds", seconds), ("steps", steps))
    }
    return {
        "seeds": len(runs),
        "solved": sum(map(math.isfinite, seconds)),
        **spread,
        "threads": runs[0]["threads"],
        "most_other_cpus": max(run["other_cpus"] + run["stolen_cpus"] for run in runs),
    }


def describe_run(run: dict[str, Any]) -> str:
    """Returns a line about a run."""
    solved = run["solved_seconds"]
    when = "never" if solved is None else f"after {solved:.1f} s, at step {run['solved_step']:,}"
    who = f"{run['task']:<16} {LABELS[run['contestant']]:<18} seed {run['seed']}"
    return f"{who}: solved {when}; others {run['other_cpus'] + run['stolen_cpus']:.2f} CPUs"


def main() -> int:
    parser = make_parser("Compare the time until a task is solved with other libraries.", SOLVED, CONTESTANTS)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each contestant (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (default: %(default)s)")
    return compare(NAME, SOLVED, lambda who, task: True, measure_task, parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
