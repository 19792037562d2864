"""Measures what durable checkpoints cost: everything that a checkpoint refers to is on disk before the checkpoint is.

Runs the same trainings with this code and with the code of an earlier commit (whose modules must have the same names),
alternately, each in its own process. The trainings are tracked offline: the record is written but not uploaded. For
each training:

- `cpu_seconds`: CPU time of the training thread inside `train()`;
- `train_seconds`: wall time of `train()`, until everything is on disk;
- `saving_seconds`, `logging_seconds`: wall time of the training thread in the saver and in the metric log.

`shares` are the differences of the medians, divided by the median `train_seconds` of the earlier commit (the share of
`cpu_seconds` is divided by the earlier median `cpu_seconds`). All trainings must have the same `policy_sha256`.

    git worktree add ../earlier COMMIT
    python -m benchmarks.cost.durability ../earlier --pairs 9
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, Stopwatch, collect_provenance, find_commit, run_json, write_json

CONFIGS: dict[str, dict[str, Any]] = {
    "ppo/cartpole": {"checkpoint.every": 2_500, "evaluation.every": 5_000},
    "dqn/cartpole": {"checkpoint.every": 1_000, "evaluation.every": 2_500},
}
"""Shipped configs, with checkpoints and evaluations several times as often as in the shipped settings."""

NUMBERS = ("cpu_seconds", "train_seconds", "saving_seconds", "logging_seconds")


def train_once(config: str) -> dict[str, Any]:
    """Trains with the code that this process imports, and returns the measured numbers."""
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.loading import load_config
    from rl_training.runtime.checkpoint import open_checkpoint
    from rl_training.runtime.checkpoint_saver import Saver
    from rl_training.tracking.metric_log import MetricLog
    from rl_training.tracking.session import start_tracking

    logging.disable(logging.WARNING)
    saving, logged = Stopwatch(), Stopwatch()
    saving.watch(Saver, "begin", "end", "save", "write_ahead", "close")
    logged.watch(MetricLog, "on_train_start", "on_update_end", "on_eval_end", "on_train_end")
    trainer = DefaultExperimentManager().setup(load_config(config, CONFIGS[config]))
    with start_tracking(trainer.run.run_dir, trainer.config, offline=True) as session:
        trainer.callbacks.append(session.callback)
        began = time.perf_counter()
        result = trainer.train()
        seconds = time.perf_counter() - began
    assert result.checkpoint is not None
    return {
        "cpu_seconds": round(result.cpu_seconds, 3),
        "train_seconds": round(seconds, 3),
        "saving_seconds": round(saving.seconds, 3),
        "logging_seconds": round(logged.seconds, 3),
        "policy_sha256": open_checkpoint(result.checkpoint).policy_sha256,
    }


def train_in_process(checkout: Path, config: str) -> dict[str, Any]:
    """Trains with the code of a checkout, in its own process and home."""
    with tempfile.TemporaryDirectory(prefix="durability-") as home:
        paths = os.pathsep.join([str(checkout), str(ROOT)])
        return run_json([__file__, str(checkout), "--train", config], Path(home), {"PYTHONPATH": paths})


def compare(config: str, earlier: Path, pairs: int) -> dict[str, Any]:
    """Trains alternately with both checkouts; each pair begins with the other one."""
    runs: dict[str, list[dict[str, Any]]] = {"earlier": [], "this": []}
    places = {"earlier": earlier, "this": ROOT}
    for pair in range(pairs):
        for name in ("earlier", "this") if pair % 2 == 0 else ("this", "earlier"):
            runs[name].append(train_in_process(places[name], config))
            print(f"{config}, pair {pair + 1} of {pairs}, {name}: {runs[name][-1]}", flush=True)
    columns = {name: {key: [run[key] for run in found] for key in NUMBERS} for name, found in runs.items()}
    medians = {name: {key: median(values) for key, values in column.items()} for name, column in columns.items()}
    before, now = medians["earlier"], medians["this"]
    wholes = {key: before["cpu_seconds" if key == "cpu_seconds" else "train_seconds"] for key in NUMBERS}
    return {
        "settings": CONFIGS[config],
        "same_policy": len({run["policy_sha256"] for found in runs.values() for run in found}) == 1,
        "shares": {key: round((now[key] - before[key]) / wholes[key], 4) for key in NUMBERS},
        "medians": medians,
        "runs": columns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of durable checkpoints with an earlier commit.")
    parser.add_argument("earlier", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=9, help="number of trainings with each (default: %(default)s)")
    parser.add_argument("--train", choices=list(CONFIGS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        print(json.dumps(train_once(arguments.train)))
        return
    load = os.getloadavg()[0]
    results = {config: compare(config, arguments.earlier.resolve(), arguments.pairs) for config in CONFIGS}
    result = {
        "benchmark": "durability",
        "earlier_commit": find_commit(arguments.earlier),
        "load_average": load,
        **results,
    }
    path = write_json("durability", {**result, **collect_provenance()})
    print(json.dumps({config: found["shares"] for config, found in results.items()}, indent=2))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
