"""A row of a comparison with Stable-Baselines3: the same seeds of both libraries, beside a random policy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import write_json
from benchmarks.learning.bench import Written
from benchmarks.learning.peer_tasks import PeerTask
from benchmarks.learning.peers import PeerSeed, RandomPolicy, find_versions
from benchmarks.learning.runs import EPISODES, Seed, Training, make_seed
from rl_training.comparison.statistics import compute_mean_difference, estimate
from rl_training.system.durable_files import replace_file

WAY = 0.9
"""The least part of the way from a random policy's score to the peer's."""


@dataclass(frozen=True)
class PeerRow:
    """A task, and its trainings in both libraries."""

    task: PeerTask
    ours: tuple[Seed, ...]
    theirs: tuple[PeerSeed, ...]

    @property
    def name(self) -> str:
        """The name of the row's file."""
        return self.task.name

    @property
    def minutes(self) -> float:
        """Approximate duration of a training."""
        return self.task.minutes

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The random policy, and the seeds of both libraries in turn."""
        pairs = [training for pair in zip(self.ours, self.theirs, strict=True) for training in pair]
        return (RandomPolicy(self.ours[0].settings), *pairs)

    def write(self, runs: Sequence[dict[str, Any]], about: dict[str, Any], results: Path) -> Written:
        """Writes the file; see `Row.write`."""
        random, *pairs = runs
        ours, theirs = pairs[::2], pairs[1::2]
        summary = judge(
            [run["return_mean"] for run in ours], [run["return_mean"] for run in theirs], random["return_mean"]
        )
        result = {
            "benchmark": self.task.group,
            "task": asdict(self.task),
            "protocol": f"final policy, greedy, {EPISODES} held-out episodes a seed, the same for both libraries",
            "settings": self.ours[0].settings.model_dump(mode="json", exclude={"seed"}),
            "summary": summary,
            "ours": ours,
            "theirs": theirs,
            "random": random,
            "their_versions": find_versions(self.theirs[0].python),
            **about,
        }
        write_json(self.name, result, results)
        text = f"ours {summary['ours']:.1f}, theirs {summary['theirs']:.1f}, random {summary['random']:.1f}"
        return Written(text, None if summary["no_worse"] else f"worse than Stable-Baselines3: {text}")


def judge(ours: Sequence[float], theirs: Sequence[float], random: float) -> dict[str, Any]:
    """Returns the comparison of the scores of our seeds with those of the peer's.

    We are no worse if the 95 % interval of the difference of means is not wholly below zero, and our mean has come at
    least 90 % of the way from the random policy's score to their mean. If they are no better than random, our mean must
    be at least theirs.

    Args:
        ours: The score of each of our seeds.
        theirs: The score of each of their seeds.
        random: The score of the random policy.
    """
    x, y = np.array(ours)[:, np.newaxis], np.array(theirs)[:, np.newaxis]
    difference = estimate(compute_mean_difference, x, y)
    needed = y.mean() - (1 - WAY) * max(0.0, y.mean() - random)
    worse = difference.high is not None and difference.high < 0
    return {
        "ours": float(x.mean()),
        "theirs": float(y.mean()),
        "random": random,
        "difference": difference.to_dict(),
        "needed": float(needed),
        "no_worse": bool(not worse and x.mean() >= needed),
    }


def make_peer_row(task: PeerTask, python: Path, work: Path, code: str) -> PeerRow:
    """Returns the row of a task; the config of our trainings is written to a folder.

    The name of the config contains the hash of its text: another version of the task, which `--list` or another queue
    may write to the same folder, leaves it as it is for the trainings that wait.

    Args:
        task: The task.
        python: The interpreter of Stable-Baselines3's environment.
        work: The folder in which the config is kept.
        code: `hash_code()` of the package.
    """
    settings = {"algo": task.algo, "env_id": task.env_id, "total_timesteps": task.steps, **task.settings}
    text = yaml.safe_dump(settings, sort_keys=False)
    config = work / "configs" / f"{task.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    replace_file(config, text)
    numbers = range(task.seeds)
    ours = tuple(make_seed(task.name, config, number, (), code) for number in numbers)
    theirs = tuple(PeerSeed(task.label, task.env_id, task.steps, number, task.arguments, python) for number in numbers)
    return PeerRow(task, ours, theirs)
