"""Trains several seeds of the shipped configs, and evaluates their final policies.

Without `--config`, it trains the tasks of the group `seeds` in `tasks.py`. Each seed runs `rl-training train
--no-track` in its own process with one thread, with one process per CPU, and the longest trainings start first. The
result of a finished seed is kept; the seed is trained again only if its settings, the code or a version has changed.
docs/learning.md explains the evaluation.

    python -m benchmarks.learning.measure
    python -m benchmarks.learning.measure --config configs/dqn/acrobot.yaml --seeds 5

The exit code is 0 if every score is reached, 1 if a score is missed or a training failed, 2 for a wrong command or
config, and 130 if the benchmark was stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT
from benchmarks.learning.bench import WORK, run_rows
from benchmarks.learning.config_rows import ConfigRow, make_config_row
from benchmarks.learning.report import write_report
from benchmarks.learning.runs import hash_code
from benchmarks.learning.tasks import TASKS
from rl_training.config.shipped_configs import find_config
from rl_training.errors import UserError

SEEDS = 5
"""Number of seeds of a config that is not in the table."""


def main() -> None:
    arguments = _parse()
    code = hash_code()
    try:
        rows = make_rows(arguments, code)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    faults = run_rows(rows, code, arguments.work, arguments.results, fresh=arguments.fresh)
    write_report(arguments.results)
    for line in faults:
        print(line, file=sys.stderr)
    sys.exit(1 if faults else 0)


def make_rows(arguments: argparse.Namespace, code: str) -> list[ConfigRow]:
    """Returns the configs and seeds to measure, those with the longest trainings first.

    Raises:
        UserError: A config is missing or has a fault.
    """
    tasks = {(ROOT / task.config).resolve(): task for task in TASKS}
    if arguments.config is None:
        paths = [path for path, task in tasks.items() if task.group == "seeds"]
    else:
        paths = [find_config(arguments.config).resolve()]
    rows = []
    for path in paths:
        task = tasks.get(path)
        count = arguments.seeds or (SEEDS if task is None else task.seeds)
        numbers = range(arguments.first_seed, arguments.first_seed + count)
        rows.append(make_config_row(path, task, numbers, arguments.set, code))
    return sorted(rows, key=lambda row: row.minutes, reverse=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train several seeds of configs, and evaluate their final policies.")
    parser.add_argument("--config", help="a file or a shipped config (default: the tasks of the group `seeds`)")
    parser.add_argument("--seeds", type=int, help=f"number of seeds (default: as in the table, or {SEEDS})")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="train finished seeds again")
    parser.add_argument("--set", action="append", default=[], help="override a setting, as key=value; repeatable")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results and the figure")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the finished seeds")
    arguments = parser.parse_args()
    arguments.results, arguments.work = arguments.results.resolve(), arguments.work.resolve()
    if arguments.set and arguments.results == RESULTS:
        parser.error(f"{RESULTS.relative_to(ROOT)} is for the shipped settings; with --set, also pass --results")
    return arguments


if __name__ == "__main__":
    main()
