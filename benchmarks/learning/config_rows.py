"""A row of the learning benchmark: several seeds of a config, beside a random policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.harness import ROOT, name_config, write_json
from benchmarks.learning.bench import Written
from benchmarks.learning.peers import RandomPolicy
from benchmarks.learning.runs import EPISODES, Seed, make_seed
from benchmarks.learning.tasks import Task
from rl_training.security.secrets import redact

RESAMPLES = 10_000
"""Number of bootstrap samples of the seeds for the confidence interval."""


@dataclass(frozen=True)
class ConfigRow:
    """A config and its seeds."""

    config: str
    task: Task | None
    """None for a config that is not in the table, so that it has no score to reach."""
    overrides: tuple[str, ...]
    seeds: tuple[Seed, ...]

    @property
    def name(self) -> str:
        """The name of the row's file."""
        return f"learning-{self.seeds[0].name}"

    @property
    def minutes(self) -> float:
        """Approximate duration of a training."""
        return 0.0 if self.task is None else self.task.minutes

    @property
    def trainings(self) -> tuple[Seed | RandomPolicy, ...]:
        """The seeds, and the random policy."""
        return (*self.seeds, RandomPolicy(self.seeds[0].settings))

    def write(self, runs: Sequence[dict[str, Any]], about: dict[str, Any], results: Path) -> Written:
        """Writes the file; see `Row.write`."""
        *seeds, random = runs
        bar = None if self.task is None else self.task.bar
        summary = summarize(np.array([run["return_mean"] for run in seeds]), bar)
        promoted = summarize(np.array([run["promoted"]["return_mean"] for run in seeds]), bar)
        result = {
            "benchmark": "learning",
            "config": self.config,
            "overrides": list(self.overrides),
            "protocol": f"final policy, greedy, {EPISODES} held-out episodes a seed, the env's own return",
            "settings": redact(self.seeds[0].settings.model_dump(mode="json", exclude={"seed"})),
            "summary": summary | {"promoted": promoted, "random": random["return_mean"]},
            "seeds": seeds,
            **about,
        }
        write_json(self.name, result, results)
        text = f"IQM {summary['iqm']:.2f}, lowest {summary['lowest']:.2f}"
        if bar is None:
            return Written(text)
        missed = f"missed its score of {bar:g}: IQM {summary['iqm']:.2f}"
        return Written(f"{text} (at least {bar:g})", missed if summary["iqm"] < bar else None)


def make_config_row(path: Path, task: Task | None, numbers: range, overrides: Sequence[str], code: str) -> ConfigRow:
    """Returns the row of a config with the seeds `numbers`.

    Args:
        path: The file of the config.
        task: The task of the table, whose overrides apply too, or None.
        numbers: The seeds.
        overrides: Overrides of the config.
        code: `hash_code()` of the package.

    Raises:
        UserError: The config is missing or has a fault.
    """
    config = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    sets = (*(() if task is None else task.overrides), *overrides)
    seeds = tuple(make_seed(name_config(config), path, number, sets, code) for number in numbers)
    return ConfigRow(config, task, sets, seeds)


def make_task_row(task: Task, code: str) -> ConfigRow:
    """Returns the row of a task of the table, with its own number of seeds."""
    return make_config_row((ROOT / task.config).resolve(), task, range(task.seeds), (), code)


def summarize(returns: np.ndarray, bar: float | None = None) -> dict[str, float]:
    """Returns the statistics over seeds; with fewer than three seeds, there is no confidence interval.

    Args:
        returns: Mean return of a policy of each seed, shape [seeds].
        bar: The score to reach, if there is one.
    """
    summary = {
        "seeds": len(returns),
        "mean": float(returns.mean()),
        "lowest": float(returns.min()),
        "iqm": float(stats.trim_mean(returns, 0.25)),
    }
    if bar is not None:
        summary["at_bar"] = int((returns >= bar).sum())
    if len(returns) >= 3:
        drawn = np.random.default_rng(0).choice(returns, (RESAMPLES, len(returns)))
        low, high = np.percentile(stats.trim_mean(drawn, 0.25, axis=1), [2.5, 97.5])
        summary |= {"iqm_low": float(low), "iqm_high": float(high)}
    return summary
