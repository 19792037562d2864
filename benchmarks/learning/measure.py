"""Trains several seeds of the shipped configs, and evaluates their final policies.

Without `--config`, it trains all tasks of `tasks.py`. Each seed runs `rl-training train --no-track` in its own process
with one thread, with one process per CPU, and the longest trainings start first. The result of a finished seed is kept;
the seed is trained again only if its settings, the code or a version has changed. docs/learning.md explains the
evaluation.

    python -m benchmarks.learning.measure
    python -m benchmarks.learning.measure --config configs/dqn/acrobot.yaml --seeds 5

The exit code is 0 if every score is reached, 1 if a score is missed or a training failed, 2 for a wrong command or
config, and 130 if the benchmark was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.harness import RESULTS, ROOT, collect_provenance, count_cpus, name_config, write_json
from benchmarks.learning.report import write_report
from benchmarks.learning.runs import EPISODES, Seed, copy_code, hash_code, load_finished, make_seed, train
from benchmarks.learning.tasks import TASKS, Task
from rl_training.config.shipped_configs import find_config
from rl_training.errors import UserError
from rl_training.security.secrets import redact

WORK = ROOT / "benchmarks" / "work"
RESAMPLES = 10_000
"""Number of bootstrap samples of the seeds for the confidence interval."""


@dataclass(frozen=True)
class Measurement:
    """A config and its seeds."""

    config: str
    task: Task | None
    """None for a config that is not in the table, so that it has no score to reach."""
    seeds: tuple[Seed, ...]


def main() -> None:
    arguments = _parse()
    about = collect_provenance()
    code = hash_code()
    try:
        measurements = make_plan(arguments, code)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    package = copy_code(arguments.work, code)
    seeds = [] if arguments.fresh else [seed for measurement in measurements for seed in measurement.seeds]
    runs = {seed: run for seed in seeds if (run := load_finished(seed, arguments.work)) is not None}
    bench = Bench(arguments, measurements, runs, about | {"code_sha256": code}, package)
    try:
        asyncio.run(bench.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; the finished seeds are kept, and the same command continues", file=sys.stderr)
        sys.exit(130)
    write_report(arguments.results)
    for line in bench.faults:
        print(line, file=sys.stderr)
    sys.exit(1 if bench.faults else 0)


def make_plan(arguments: argparse.Namespace, code: str) -> list[Measurement]:
    """Returns the configs and seeds to measure.

    Raises:
        UserError: A config is missing or has a fault.
    """
    tasks = {(ROOT / task.config).resolve(): task for task in TASKS}
    paths = list(tasks) if arguments.config is None else [find_config(arguments.config).resolve()]
    measurements = []
    for path in paths:
        task = tasks.get(path)
        count = arguments.seeds or (task.seeds if task is not None else 5)
        config = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        numbers = range(arguments.first_seed, arguments.first_seed + count)
        seeds = tuple(make_seed(name_config(config), path, number, arguments.set, code) for number in numbers)
        measurements.append(Measurement(config, task, seeds))
    return measurements


@dataclass
class Bench:
    """Trains the seeds that have no result yet, and writes each measurement after its last seed."""

    arguments: argparse.Namespace
    measurements: Sequence[Measurement]
    runs: dict[Seed, dict[str, Any]]
    about: dict[str, Any]
    package: Path
    faults: list[str] = field(default_factory=list)
    """Trainings that failed, and scores that were missed."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._free = asyncio.Semaphore(count_cpus())

    async def run(self) -> None:
        """Trains and evaluates all seeds; a training that fails does not stop the others."""
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        missing = [(seed, m) for m in self.measurements for seed in m.seeds if seed not in self.runs]
        missing.sort(key=lambda pair: pair[1].task.minutes if pair[1].task else 0, reverse=True)
        print(f"{len(self.runs)} seeds are finished, {len(missing)} to train, {count_cpus()} at a time", flush=True)
        for measurement in self.measurements:
            self._write_if_complete(measurement)
        async with asyncio.TaskGroup() as group:
            for seed, measurement in missing:
                group.create_task(self._train(seed, measurement))

    async def _train(self, seed: Seed, measurement: Measurement) -> None:
        async with self._free:
            try:
                run = await train(seed, self.arguments.work, self.package)
            except RuntimeError as error:
                self._print(f"{seed.name} seed {seed.number}: failed: {error}")
                self.faults.append(f"{seed.name}: seed {seed.number} failed, so the task is not evaluated")
                return
        self.runs[seed] = run
        self._print(
            f"{seed.name} seed {seed.number}: {run['return_mean']:.2f} [{run['ci_low']:.2f}, {run['ci_high']:.2f}]"
        )
        self._write_if_complete(measurement)

    def _write_if_complete(self, measurement: Measurement) -> None:
        runs = [self.runs[seed] for seed in measurement.seeds if seed in self.runs]
        if len(runs) < len(measurement.seeds):
            return
        first = measurement.seeds[0]
        summary = summarize(np.array([run["return_mean"] for run in runs]))
        result = {
            "benchmark": "learning",
            "config": measurement.config,
            "overrides": self.arguments.set,
            "protocol": f"final policy, greedy, {EPISODES} held-out episodes a seed, the env's own return",
            "settings": redact(first.settings.model_dump(mode="json", exclude={"seed"})),
            "summary": summary,
            "seeds": runs,
            **self.about,
        }
        path = write_json(f"learning-{first.name}", result, self.arguments.results)
        task = measurement.task
        bar = "" if task is None else f" (at least {task.bar:g})"
        self._print(f"{first.name}: IQM {summary['iqm']:.2f}{bar}, lowest {summary['lowest']:.2f}; written: {path}")
        if task is not None and summary["iqm"] < task.bar:
            self.faults.append(f"{first.name}: missed its score of {task.bar:g}: IQM {summary['iqm']:.2f}")

    def _print(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)


def summarize(returns: np.ndarray) -> dict[str, float]:
    """Returns the statistics over seeds; with fewer than three seeds, there is no confidence interval.

    Args:
        returns: Mean return of each seed's final policy, shape [seeds].
    """
    summary = {
        "seeds": len(returns),
        "mean": float(returns.mean()),
        "lowest": float(returns.min()),
        "iqm": float(stats.trim_mean(returns, 0.25)),
    }
    if len(returns) >= 3:
        drawn = np.random.default_rng(0).choice(returns, (RESAMPLES, len(returns)))
        low, high = np.percentile(stats.trim_mean(drawn, 0.25, axis=1), [2.5, 97.5])
        summary |= {"iqm_low": float(low), "iqm_high": float(high)}
    return summary


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train several seeds of configs, and evaluate their final policies.")
    parser.add_argument("--config", help="a file or a shipped config (default: all tasks of the table)")
    parser.add_argument("--seeds", type=int, help="number of seeds (default: as in the table, or 5)")
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
