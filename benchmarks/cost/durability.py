"""Durability: what it costs that all a checkpoint stands on is on disk before the checkpoint is.

The same trainings with this code and with an earlier commit's (whose modules must have the same names), in turn,
each in a process of its own. Tracked offline:
the record is written and nobody sends it. Of each training:

- `cpu_seconds`: CPU time of the training thread inside `train()`;
- `train_seconds`: wall time of `train()`, until everything was on disk;
- `saving_seconds`, `logging_seconds`: wall time of the training thread inside the saver and inside the metric log.

`shares` are the differences of the medians, over the median `train_seconds` of the earlier commit (for `cpu_seconds`
over its own). `policy_sha256` must be the same for all of them.

    git worktree add ../earlier COMMIT
    python -m benchmarks.cost.durability ../earlier --pairs 9
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provenance import ROOT, environment, provenance, write_json

CONFIGS: dict[str, dict[str, Any]] = {
    "ppo/cartpole": {"checkpoint.every": 2_500, "evaluation.every": 5_000},
    "dqn/cartpole": {"checkpoint.every": 1_000, "evaluation.every": 2_500},
}
"""Checkpoints and evaluations several times as often as the shipped settings ask for."""

NUMBERS = ("cpu_seconds", "train_seconds", "saving_seconds", "logging_seconds")


class Stopwatch:
    """Adds up the wall time inside of some methods; what one of them calls counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def watch(self, owner: type, *names: str) -> None:
        """Times methods of a class."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return method(*arguments, **options)
            self._inside, began = True, time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - began

        return timed


def train_once(config: str) -> dict[str, Any]:
    """Trains with the code that this process imports."""
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


def in_a_process(checkout: Path, config: str) -> dict[str, Any]:
    """Trains with a checkout's code, in a process and a home of its own."""
    with tempfile.TemporaryDirectory(prefix="durability-") as home:
        done = subprocess.run(
            [sys.executable, __file__, str(checkout), "--train", config],
            env={**environment(Path(home)), "PYTHONPATH": os.pathsep.join([str(checkout), str(ROOT)])},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(config: str, earlier: Path, pairs: int) -> dict[str, Any]:
    """Trains in turn with both checkouts; which one comes first changes from pair to pair."""
    runs: dict[str, list[dict[str, Any]]] = {"earlier": [], "this": []}
    places = {"earlier": earlier, "this": ROOT}
    for pair in range(pairs):
        for name in ("earlier", "this") if pair % 2 == 0 else ("this", "earlier"):
            runs[name].append(in_a_process(places[name], config))
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


def commit_of(checkout: Path) -> str:
    """Returns the commit of a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what durable checkpoints cost, beside an earlier commit.")
    parser.add_argument("earlier", type=Path, help="checkout of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=9, help="trainings with each")
    parser.add_argument("--train", choices=list(CONFIGS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        print(json.dumps(train_once(arguments.train)))
        return
    load = os.getloadavg()[0]
    results = {config: compare(config, arguments.earlier.resolve(), arguments.pairs) for config in CONFIGS}
    result = {
        "benchmark": "durability",
        "earlier_commit": commit_of(arguments.earlier),
        "load_average": load,
        **results,
    }
    path = write_json("durability", {**result, **provenance()})
    print(json.dumps({config: found["shares"] for config, found in results.items()}, indent=2))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
