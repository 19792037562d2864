"""Learning: several seeds of the shipped configs, and how good their final policies are.

Without `--config`, all tasks of `learning_tasks.py`. Each seed is `rl-training train --no-track` in a process of its
own with one thread, one process a CPU, the longest first; a seed that is finished is kept, and not trained again unless
its settings, the code or a version have changed. docs/learning.md says what is judged and how.

    python -m benchmarks.learning.measure
    python -m benchmarks.learning.measure --config configs/dqn/acrobot.yaml --seeds 5

The exit status is 0 where every bar is reached, 1 where one is missed or a training broke, 2 for a wrong command or
config, and 130 where the benchmark was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning.report import write_report
from benchmarks.learning.runs import EPISODES, Seed, code_sha256, copy_code, kept, make_seed, train
from benchmarks.learning.tasks import TASKS, Task
from benchmarks.provenance import RESULTS, ROOT, config_name, provenance, usable_cpus, write_json
from rl_training.config.shipped_configs import find_config
from rl_training.errors import UserError
from rl_training.security.secrets import redact

WORK = ROOT / "benchmarks" / "work"
RESAMPLES = 10_000
"""Of the seeds, with replacement, for the interval."""


@dataclass(frozen=True)
class Measurement:
    """A config and the seeds that are to be trained of it."""

    config: str
    task: Task | None
    """None for a config that is not in the table and has no bar."""
    seeds: tuple[Seed, ...]


def main() -> None:
    arguments = _parse()
    about = provenance()
    code = code_sha256()
    try:
        measurements = plan(arguments, code)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    package = copy_code(arguments.work, code)
    runs = {seed: run for m in measurements for seed in m.seeds if (run := _kept(seed, arguments)) is not None}
    bench = Bench(arguments, measurements, runs, about | {"code_sha256": code}, package)
    try:
        asyncio.run(bench.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; seeds that are finished are kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
    write_report(arguments.results)
    for line in bench.faults:
        print(line, file=sys.stderr)
    sys.exit(1 if bench.faults else 0)


def plan(arguments: argparse.Namespace, code: str) -> list[Measurement]:
    """Returns what is to be measured.

    Raises:
        UserError: A config is missing or faulty.
    """
    tasks = {(ROOT / task.config).resolve(): task for task in TASKS}
    paths = list(tasks) if arguments.config is None else [find_config(arguments.config).resolve()]
    measurements = []
    for path in paths:
        task = tasks.get(path)
        count = arguments.seeds or (task.seeds if task is not None else 5)
        config = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        numbers = range(arguments.first_seed, arguments.first_seed + count)
        seeds = tuple(make_seed(config_name(config), path, number, arguments.set, code) for number in numbers)
        measurements.append(Measurement(config, task, seeds))
    return measurements


class Bench:
    """Trains what is not there yet, and writes each measurement as soon as its last seed is done."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        measurements: Sequence[Measurement],
        runs: dict[Seed, dict[str, Any]],
        about: dict[str, Any],
        package: Path,
    ) -> None:
        self.arguments = arguments
        self.measurements = measurements
        self.runs = runs
        self.about = about
        self.package = package
        self.faults: list[str] = []
        """What went wrong, bars that were missed among it."""
        self._began = time.monotonic()
        self._free = asyncio.Semaphore(usable_cpus())

    async def run(self) -> None:
        """Does it all; a training that breaks does not stop the others."""
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        missing = [(seed, m) for m in self.measurements for seed in m.seeds if seed not in self.runs]
        missing.sort(key=lambda pair: pair[1].task.minutes if pair[1].task else 0, reverse=True)
        print(f"{len(self.runs)} seeds are there, {len(missing)} to train, {usable_cpus()} at a time", flush=True)
        for measurement in self.measurements:
            self._judge_if_complete(measurement)
        async with asyncio.TaskGroup() as group:
            for seed, measurement in missing:
                group.create_task(self._train(seed, measurement))

    async def _train(self, seed: Seed, measurement: Measurement) -> None:
        async with self._free:
            try:
                run = await train(seed, self.arguments.work, self.package)
            except RuntimeError as error:
                self._say(f"{seed.name} seed {seed.number}: broke: {error}")
                self.faults.append(f"{seed.name}: seed {seed.number} broke, so it is not judged")
                return
        self.runs[seed] = run
        self._say(
            f"{seed.name} seed {seed.number}: {run['return_mean']:.2f} [{run['ci_low']:.2f}, {run['ci_high']:.2f}]"
        )
        self._judge_if_complete(measurement)

    def _judge_if_complete(self, measurement: Measurement) -> None:
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
        self._say(f"{first.name}: IQM {summary['iqm']:.2f}{bar}, lowest {summary['lowest']:.2f}; written: {path}")
        if task is not None and summary["iqm"] < task.bar:
            self.faults.append(f"{first.name}: missed its bar of {task.bar:g}: IQM {summary['iqm']:.2f}")

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)


def summarize(returns: np.ndarray) -> dict[str, float]:
    """Returns the aggregate over seeds; the interval is left out where there are fewer than three.

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


def _kept(seed: Seed, arguments: argparse.Namespace) -> dict[str, Any] | None:
    return None if arguments.fresh else kept(seed, arguments.work)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train several seeds of configs and judge their final policies.")
    parser.add_argument("--config", help="a file or a shipped name; without it, all tasks of the table")
    parser.add_argument("--seeds", type=int, help="how many; by default what the table says, or 5")
    parser.add_argument("--first-seed", type=int, default=0, help="from which they count up (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="train seeds again that are finished")
    parser.add_argument("--set", action="append", default=[], help="override a setting: key=value; repeatable")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results and the picture")
    parser.add_argument("--work", type=Path, default=WORK, help="folder in which finished seeds are kept")
    arguments = parser.parse_args()
    arguments.results, arguments.work = arguments.results.resolve(), arguments.work.resolve()
    if arguments.set and arguments.results == RESULTS:
        parser.error(f"{RESULTS.relative_to(ROOT)} is for the shipped settings; with --set give --results, too")
    return arguments


if __name__ == "__main__":
    main()
