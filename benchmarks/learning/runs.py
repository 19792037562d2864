"""One seed of the learning benchmark: trained in a process of its own, judged, and kept for the next time.

What a seed gave is kept in a JSON file whose name holds the hash of all that decides it: the resolved settings, the
code, and the versions of what computes. So a benchmark that was broken off goes on, and what has changed is trained
again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, run_json_beside, write_json
from rl_training.config.serialization import config_hash
from rl_training.config.settings import TrainConfig
from rl_training.experiment.loading import load_config
from rl_training.runs.versions import versions

EPISODES = 100
"""Held-out episodes that the final policy of each seed plays."""
POINTS = 200
"""At most about so many points of a training curve are kept."""
ENGINES = ("box2d", "mujoco", "ale-py")
"""What the environments compute with, where it is installed."""
SILENT = ("cli", "tracking")
"""Parts of the package that decide no number: a change there makes no seed train again."""


@dataclass(frozen=True, eq=False)
class Seed:
    """One training: a config with what is set on top of it, one of which is the seed."""

    name: str
    """Of its task: `dqn-acrobot`."""
    config: Path
    number: int
    sets: tuple[str, ...]
    settings: TrainConfig
    """As resolved when the benchmark began."""
    code: str
    """`code_sha256()` of the package that trains it."""

    def key(self) -> str:
        """Returns a file name's worth of all that decides what this seed gives."""
        identity = {"settings": config_hash(self.settings), "code": self.code, **versions(), **_engines()}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return f"{self.name}-seed-{self.number}-{digest[:16]}"


def make_seed(name: str, config: Path, number: int, overrides: Sequence[str], code: str) -> Seed:
    """Returns seed `number` of a config, with `overrides` beside the benchmark's own."""
    sets = (*overrides, f"seed={number}", f"evaluation.final_episodes={EPISODES}")
    return Seed(name, config, number, sets, load_config(config, sets), code)


def code_sha256() -> str:
    """Returns the hash of the code that decides the numbers."""
    files = [path for path in (ROOT / "rl_training").rglob("*.py") if not _is_silent(path)]
    digest = hashlib.sha256()
    for path in sorted([*files, Path(__file__).resolve()]):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n{bare_code(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def bare_code(source: str) -> str:
    """Returns what a module does: its syntax tree without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_text(statement)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def copy_code(work: Path, code: str) -> Path:
    """Returns a folder with a copy of the package, so that it may be edited while seeds train for hours."""
    copy = work / f"code-{code[:16]}"
    if not copy.exists():
        beside = work / f".{copy.name}"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(ROOT / "rl_training", beside / "rl_training", ignore=shutil.ignore_patterns("__pycache__"))
        beside.rename(copy)
    return copy


def kept(seed: Seed, work: Path) -> dict[str, Any] | None:
    """Returns what this seed gave before, or None where it was never trained to its end."""
    path = work / f"{seed.key()}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


async def train(seed: Seed, work: Path, package: Path) -> dict[str, Any]:
    """Trains a seed, keeps what it gave, and returns it.

    Args:
        seed: What to train.
        work: Where it is kept.
        package: The folder that holds the copy of the package.

    Raises:
        RuntimeError: It broke, was stopped, or its config has changed since the benchmark began.
    """
    run_dir = work / f"run-{seed.key()}-{os.getpid()}"
    # The job: a second process that would train this seed here is refused.
    sets = [*seed.sets, f"run_dir={run_dir}", f"job={seed.key()}"]
    flags = [word for value in sets for word in ("--set", value)]
    command = ["-m", "rl_training", "train", "--config", str(seed.config), *flags, "--no-track", "--json"]
    try:
        run = _record(seed, await run_json_beside(command, work / "home", package), run_dir)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    write_json(seed.key(), run, work)
    return run


def _record(seed: Seed, summary: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    if _read(run_dir / "metadata.json")["config_hash"] != config_hash(seed.settings):
        raise RuntimeError(f"{seed.config} has changed while seed {seed.number} was waiting; run the benchmark again")
    evaluation = _read(run_dir / "artifacts" / "evaluation.json")
    return {
        "seed": seed.number,
        **{name: evaluation[name] for name in ("return_mean", "return_std", "ci_low", "ci_high", "episodes", "cut")},
        **{name: summary[name] for name in ("num_timesteps", "steps_per_second", "policy_sha256")},
        "returns": evaluation["returns"],
        "training_returns": thinned(read_curve(run_dir, "rollout/episode_return_mean")),
        "evaluation_returns": read_curve(run_dir, "eval/return_mean"),
    }


def read_curve(run_dir: Path, metric: str) -> list[list[float]]:
    """Returns [step, value] of one metric from a run's own log."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [[line["step"], line["metrics"][metric]] for line in lines if metric in line.get("metrics", {})]


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """Returns every n-th point, counted from the last, so that about `POINTS` are left."""
    stride = max(1, ceil(len(curve) / POINTS))
    return curve[::-stride][::-1]


def _is_silent(path: Path) -> bool:
    top = path.relative_to(ROOT / "rl_training").parts[0]
    return top.removesuffix(".py").split("_")[0] in SILENT


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _engines() -> dict[str, str]:
    found = {}
    for name in ENGINES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
