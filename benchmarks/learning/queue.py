"""Trains the long rows of the learning results one group after another, and continues after an interruption.

    python -m benchmarks.learning.queue --peers .peers
    python -m benchmarks.learning.queue --groups parity defaults
    python -m benchmarks.learning.queue --list

The groups are trained in the order in which they are listed in `GROUPS`, at low priority, with one process per CPU.
Each row's JSON file is written when its last training ends. `--list` shows how many trainings of each row are finished
with the present code, and trains nothing.

The exit code is 0 if every score is reached, 1 if a score is missed or a training failed, 2 for a wrong command, and
130 if the queue was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT
from benchmarks.learning.bench import WORK, count_finished, run_rows
from benchmarks.learning.config_rows import ConfigRow, make_task_row
from benchmarks.learning.peer_rows import PeerRow, make_peer_row
from benchmarks.learning.peer_tasks import PEER_TASKS, PeerTask
from benchmarks.learning.report import write_report
from benchmarks.learning.runs import hash_code
from benchmarks.learning.tasks import TASKS, Task

GROUPS = ("parity", "parity-60k", "defaults", "seeds", "mujoco", "pong")
"""The groups in the order in which they are trained."""
NICENESS = 19


def main() -> None:
    arguments = _parse()
    code = hash_code()
    rows = make_rows((*PEER_TASKS, *TASKS), arguments.groups, arguments.python, arguments.work, code)
    if arguments.list:
        for line in list_rows(rows, arguments.work, arguments.results):
            print(line)
        return
    os.nice(NICENESS)
    faults = run_rows(rows, code, arguments.work, arguments.results)
    write_report(arguments.results)
    for line in faults:
        print(line, file=sys.stderr)
    sys.exit(1 if faults else 0)


def make_rows(
    tasks: Sequence[PeerTask | Task], groups: Sequence[str], python: Path, work: Path, code: str
) -> list[PeerRow | ConfigRow]:
    """Returns the rows of some groups in the order of `GROUPS`; within a group, rows of short trainings are first.

    So most rows are written before a long one holds the queue up.

    Args:
        tasks: All tasks.
        groups: The groups to train.
        python: The interpreter of Stable-Baselines3's environment.
        work: The folder of the finished trainings.
        code: `hash_code()` of the package.
    """
    chosen = sorted(
        (task for task in tasks if task.group in groups), key=lambda task: (GROUPS.index(task.group), task.minutes)
    )
    return [
        make_peer_row(task, python, work, code) if isinstance(task, PeerTask) else make_task_row(task, code)
        for task in chosen
    ]


def list_rows(rows: Sequence[PeerRow | ConfigRow], work: Path, results: Path) -> list[str]:
    """Returns a line for each row: how many of its trainings are finished, and whether its file is written."""
    lines = []
    for row in rows:
        finished, total = count_finished(row, work), len(row.trainings)
        file = "written" if (results / f"{row.name}.json").exists() else "no file"
        state = "complete" if finished == total else f"{total - finished} missing"
        lines.append(f"{row.task.group:9} {row.name}: {finished} of {total} trainings are finished, {state}, {file}")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the rows of the learning results, one group after another.")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS, help="groups to train (default: all)")
    parser.add_argument("--list", action="store_true", help="show what is finished and what is missing")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results and the figure")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the finished trainings")
    arguments = parser.parse_args()
    arguments.results, arguments.work = arguments.results.resolve(), arguments.work.resolve()
    arguments.python = arguments.peers.absolute() / "sb3" / "bin" / "python"
    if not arguments.python.exists() and {task.group for task in PEER_TASKS} & set(arguments.groups):
        parser.error(
            f"there is no {arguments.python}; install it with make {arguments.peers}/sb3/.ready, or pass --peers"
        )
    return arguments


if __name__ == "__main__":
    main()
