"""Checks that a sweep finds its way out of poor settings: CartPole and Pendulum, 30 trials by TPE each.

Each sweep begins from settings that hardly learn, and trains the best three points that it finds on five seeds that the
search has not used. The shipped config is trained on the same five seeds. The search has succeeded if the interval of
its winner's interquartile mean reaches the interval of the shipped config's.

    python -m benchmarks.sweeps.poor_settings            # about half an hour on two cores
    python -m benchmarks.sweeps.poor_settings --table docs/tutorials/find-better-settings.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, record, replace_block, run_json, update_file
from rl_training.sweeps.confirmation import FIRST_SEED

NAME = "sweep-settings"
TASKS = {"CartPole-v1": ("poor_cartpole", "ppo/cartpole"), "Pendulum-v1": ("poor_pendulum", "ppo/pendulum")}
SEEDS = 5


def search(name: str, home: Path) -> dict[str, Any]:
    """Runs one sweep, or continues it, and returns its result."""
    return run_json(
        ["-m", "rl_training", "sweep", str(ROOT / "benchmarks" / "sweeps" / f"{name}.yaml"), "--json"], home
    )


def train_shipped(config: str, home: Path) -> dict[str, Any]:
    """Trains a shipped config on the seeds of the confirmation, and returns the aggregate of its held-out returns."""
    command = ["-m", "rl_training", "train", "--config", config, "--seeds", str(SEEDS), "--seed", str(FIRST_SEED)]
    aggregate: dict[str, Any] = run_json([*command, "--json"], home)["aggregate"]
    return aggregate


def summarize(result: Mapping[str, Any], shipped: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the table needs, and whether the search has reached the shipped config."""
    winner, base = result["winner"], next(point for point in result["confirmed"] if point["is_base"])
    states = [trial["state"] for trial in result["trials"] if trial["phase"] == "search"]
    return {
        "trials": {state: states.count(state) for state in sorted(set(states))},
        "winner": {key: winner[key] for key in ("search_trial", "params", "search_score", "scores", "summary")},
        "p_value": winner["p_value"],
        "base": base["summary"],
        "shipped": shipped,
        "reached": winner["summary"]["iqm_interval"][1] >= shipped["iqm_interval"][0],
    }


def format_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results as the rows of a Markdown table."""
    lines = [
        "| task | poor settings | found by the sweep | seen by the search | shipped config |",
        "|---|---:|---:|---:|---:|",
    ]
    for task, result in results.items():
        scores = [_format(result["base"]), _format(result["winner"]["summary"])]
        lines.append(
            f"| {task} | {' | '.join(scores)} | {result['winner']['search_score']:.1f} | {_format(result['shipped'])} |"
        )
    return "\n".join(lines)


def _format(summary: Mapping[str, Any]) -> str:
    low, high = summary["iqm_interval"]
    return f"{summary['iqm']:.1f} [{low:.1f}, {high:.1f}]"


def main() -> int:
    """Measures, or writes the table; the exit code is 1 if a search has not reached the shipped config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = ROOT / "benchmarks" / "work" / "poor-settings"
    parser.add_argument("--home", type=Path, default=home, help="home of the sweeps, which continue in it")
    parser.add_argument("--table", type=Path, help="write the table of the recorded results into this page")
    options = parser.parse_args()
    if options.table is not None:
        measured = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))["tasks"]
        update_file(options.table, lambda page: replace_block(page, NAME, format_table(measured)))
        return 0
    options.home.mkdir(parents=True, exist_ok=True)
    results = {}
    for task, (name, config) in TASKS.items():
        results[task] = summarize(search(name, options.home), train_shipped(config, options.home))
        print(f"{task}: {'reached' if results[task]['reached'] else 'missed'}", file=sys.stderr)
    record(NAME, {"tasks": results})
    print(format_table(results))
    return 0 if all(result["reached"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
