"""Measures what the flow and tracking cost, compared with the same training without them.

Runs of `train-flow`, tracked in MLflow, alternate with runs of `rl-training train --no-track`, each in its own process
with one thread, and with the same evaluations and checkpoints. The benchmark compares

- `cpu_ratio`: the median CPU time of the training thread in `Trainer.train()`;
- `added_once_seconds`: the wall time of the flow outside training, minus that of the plain run. Imports, the start of
  the Prefect server, and the wait for MLflow's import in the shipper do not count. Promotion is switched off, because
  it plays its own episodes. The wait for the shipper to finish counts, and is also listed separately.

    python -m benchmarks.cost.overhead --config configs/ppo/cartpole.yaml --pairs 5
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Stopwatch, name_config, record, run_json


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the flow and tracking cost.")
    parser.add_argument("--config", default="configs/ppo/cartpole.yaml", help="config to train (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="number of runs of each kind (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], help="override a setting, as key=value; repeatable")
    parser.add_argument("--only", choices=KINDS, help="run one kind in this process")
    arguments = parser.parse_args()
    if arguments.only is not None:
        print(json.dumps(KINDS[arguments.only](arguments.config, arguments.set)))
        return
    flags = [word for override in arguments.set for word in ("--set", override)]
    command = ["-m", "benchmarks.cost.overhead", "--config", arguments.config, *flags, "--only"]
    with tempfile.TemporaryDirectory(prefix="overhead-") as home:
        run_json([*command, "flow"], Path(home))  # creates the databases once for all runs
        pairs = [
            {kind: run_json([*command, kind], Path(home)) for kind in (reversed(KINDS) if i % 2 else KINDS)}
            for i in range(arguments.pairs)
        ]
    summary = summarize(pairs)
    print(json.dumps(summary))
    result = {"config": arguments.config, "overrides": arguments.set, "summary": summary, "pairs": pairs}
    record("overhead", result, f"overhead-{name_config(arguments.config)}")


def summarize(pairs: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Returns the medians over the pairs, and their ratio and difference."""
    cpu = {kind: median(pair[kind]["cpu_seconds"] for pair in pairs) for kind in KINDS}
    around = {kind: median(_time_around_training(pair[kind]) for pair in pairs) for kind in KINDS}
    return {
        "pairs": len(pairs),
        "cpu_seconds_flow": cpu["flow"],
        "cpu_seconds_plain": cpu["plain"],
        "cpu_ratio": cpu["flow"] / cpu["plain"],
        "around_training_seconds_flow": around["flow"],
        "around_training_seconds_plain": around["plain"],
        "added_once_seconds": around["flow"] - around["plain"],
        "shipper_end_seconds": median(pair["flow"]["shipper_end_seconds"] for pair in pairs),
    }


def _time_around_training(run: dict[str, float]) -> float:
    return run["wall_seconds"] - run["train_seconds"] - run["shipper_start_seconds"]


def run_flow(config: str, overrides: list[str]) -> dict[str, float]:
    """Runs train-flow with tracking; the server runs and everything is imported before the clock starts."""
    for module in ("flows.train", "flows.pipeline", "flows.tasks", "api.training"):
        import_module(f"rl_training.{module}")
    import_module("mlflow")
    from rl_training.api.progress_display import make_progress
    from rl_training.services.embedded_server import provide_server
    from rl_training.services.flow_runner import run_train_flow
    from rl_training.tracking import session

    starting, ending = Stopwatch(), Stopwatch()
    starting.watch(session.TrackingSession, "ready")
    ending.watch(session.TrackingSession, "finish")
    with provide_server():
        began = time.perf_counter()
        overrides = [*overrides, "promotion.enabled=false"]
        summary = run_train_flow(config, overrides, [make_progress()]).to_dict()
        wall = time.perf_counter() - began
    return _collect_numbers(summary, wall, starting.seconds, ending.seconds)


def run_plain(config: str, overrides: list[str]) -> dict[str, float]:
    """Runs `rl-training train --no-track`; everything is imported before the clock starts."""
    from rl_training.api.train_and_resume import train
    from rl_training.experiment.loading import load_config

    began = time.perf_counter()
    summary = train(load_config(config, overrides), track=False, progress=True).to_dict()
    return _collect_numbers(summary, time.perf_counter() - began)


KINDS: dict[str, Callable[[str, list[str]], dict[str, float]]] = {"flow": run_flow, "plain": run_plain}


def _collect_numbers(
    summary: dict[str, Any], wall: float, shipper_start: float = 0.0, shipper_end: float = 0.0
) -> dict[str, float]:
    return {
        "cpu_seconds": summary["cpu_seconds"],
        "wall_seconds": wall,
        "train_seconds": summary["num_timesteps"] / summary["steps_per_second"],
        "shipper_start_seconds": shipper_start,
        "shipper_end_seconds": shipper_end,
        "return_mean": summary["evaluation"]["return_mean"],
    }


if __name__ == "__main__":
    main()
