"""Measures what a training costs before its first environment step, and its peak memory.

In each round, one after the other in its own process, with one thread:

- `floor`: Python imports torch and Gymnasium, and nothing else;
- `untracked`: `rl-training train --no-track`;
- `tracked`: `rl-training train` with MLflow's local store;
- `tracked, first run`: the same in an empty home, where the store is created too;
- `flow`: `rl-training flow train` with an embedded Prefect server.

`cpu_seconds` is the CPU time, user and system, of the process and all its descendants until the first step of training;
`own_cpu_seconds` is that of the process alone. `peak_memory_bytes` is `VmHWM` of the process at the end of training.
Summaries are medians over the rounds, with the floor subtracted in `cpu_after_floor`.

    python -m benchmarks.cost.start --rounds 5
    python -m benchmarks.cost.start --table docs/benchmarks.md  # updates the page's table from the JSON
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.cost.first_step import RESULT
from benchmarks.harness import RESULTS, ROOT, format_row, make_environment, record, replace_block, update_file

FLOOR = "floor"
_READ_PEAK = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
FLOOR_PROGRAM = (
    "import gymnasium, torch, json, time; cpu = time.process_time(); "
    f"print(json.dumps(dict(cpu_seconds=cpu, own_cpu_seconds=cpu, peak_memory_bytes=1024 * {_READ_PEAK})))"
)
COMMANDS = {
    "untracked": ["train", "--no-track"],
    "tracked": ["train"],
    "tracked, first run": ["train"],
    "flow": ["flow", "train"],
}
FIRST_RUN = "tracked, first run"
KINDS = (FLOOR, *COMMANDS)
SETTINGS = (
    "total_timesteps=4096",
    "evaluation.final_episodes=2",
    "promotion.enabled=false",
    "callbacks=[benchmarks.cost.first_step:FirstStep]",
)
TARGETS = {"untracked": 0.3, "tracked": 0.3}
"""CPU seconds after the floor, at most."""
FLOW_TARGET = 2.0
"""CPU seconds of a flow beyond those of the tracked training, at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what happens before the first environment step.")
    parser.add_argument("--config", default="ppo/cartpole", help="config to train (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="what to run (default: all)")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="update the table of this page from the JSON")
    arguments = parser.parse_args()
    if arguments.table is not None:
        result = json.loads((RESULTS / "start.json").read_text())
        update_file(arguments.table, lambda page: replace_block(page, "start", format_table(result["summary"])))
        return
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        home = Path(folder, "home")
        for kind in arguments.kinds:  # creates the databases and compiles the modules once for all rounds
            measure(kind, arguments.config, home)
        rounds = [
            {kind: measure(kind, arguments.config, home) for kind in order}
            for i in range(arguments.rounds)
            for order in [arguments.kinds[:: -1 if i % 2 else 1]]
        ]
    summary = summarize(rounds)
    print(json.dumps(summary, indent=2))
    if arguments.kinds == list(KINDS):
        record("start", {"config": arguments.config, "summary": summary, "rounds": rounds})


def measure(kind: str, config: str, home: Path) -> dict[str, float]:
    """Runs one process and returns its measurements.

    Raises:
        RuntimeError: The process failed; the message ends with the end of its stderr.
    """
    if kind == FLOOR:
        return dict(json.loads(run([sys.executable, "-c", FLOOR_PROGRAM], home)))
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "rl_training", *COMMANDS[kind], "--config", config, *settings]
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        own_home, result = Path(folder, "home") if kind == FIRST_RUN else home, Path(folder, "start.json")
        run(command, own_home, {RESULT: str(result)})
        return dict(json.loads(result.read_text()))


def run(command: list[str], home: Path, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the output of a command that has succeeded; its modules are compiled once, as for any user."""
    environment = make_environment(home) | dict(variables)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with exit code {done.returncode}:\n{done.stderr[-1500:]}")
    return done.stdout


def summarize(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns the medians over the rounds for each kind, and the CPU time after the floor."""
    summary = {
        kind: {name: median(each[kind][name] for each in rounds) for name in numbers}
        for kind, numbers in rounds[0].items()
    }
    if FLOOR in summary:
        for kind in COMMANDS.keys() & summary.keys():
            summary[kind]["cpu_after_floor"] = summary[kind]["cpu_seconds"] - summary[FLOOR]["cpu_seconds"]
    if "flow" in summary and "tracked" in summary:
        summary["flow"]["cpu_after_tracked"] = summary["flow"]["cpu_seconds"] - summary["tracked"]["cpu_seconds"]
    return summary


def format_table(summary: dict[str, dict[str, Any]]) -> str:
    """Returns the Markdown table of the page."""
    headings = ["process", "CPU until the first step, s", "after the floor, s", "target", "peak memory, MB"]
    rows = [format_row(headings), "|---|---:|---:|---:|---:|"]
    names = {FLOOR: "torch and Gymnasium imported", **{kind: f"`{' '.join(COMMANDS[kind])}`" for kind in COMMANDS}}
    names[FIRST_RUN] += " in a new home"
    for kind, name in names.items():
        numbers = summary[kind]
        after, target = numbers.get("cpu_after_floor"), TARGETS.get(kind)
        goal = "" if target is None else f"{target:g}"
        if kind == "flow":
            goal = f"{FLOW_TARGET:g} more than `train`"
        cells = [name, f"{numbers['cpu_seconds']:.2f}", "" if after is None else f"{after:.2f}", goal]
        rows.append(format_row([*cells, f"{numbers['peak_memory_bytes'] / 1e6:.0f}"]))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
