"""Trains one seed of the learning benchmark in its own process, evaluates it, and keeps the result.

The result of a training is kept in a JSON file whose name contains the hash of everything that determines it: the
resolved settings, the code, and the versions of the libraries. So a benchmark that was interrupted continues, and a
training is repeated only if one of these has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness import ROOT, run_json_async, write_json
from rl_training.config.serialization import config_hash
from rl_training.config.settings import TrainConfig
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.experiment.loading import load_config
from rl_training.runs.health_warnings import KINDS, read_health_warnings
from rl_training.runs.metadata import read_metadata
from rl_training.runs.versions import versions
from rl_training.runtime.health.watch import METRIC

EPISODES = 100
"""Number of held-out episodes that the final policy of each seed plays."""
POINTS = 200
"""Approximate limit on the points of a training curve that are kept."""
ENGINES = ("box2d", "mujoco", "ale-py")
"""Simulators whose versions determine results, if they are installed."""
SILENT = ("cli", "tracking")
"""Parts of the package that do not affect results: after a change there, no seed is trained again."""


class Training(Protocol):
    """Work of a benchmark whose result is kept: a training, or the evaluation of a policy that does not learn."""

    name: str
    """The name in file names and messages."""
    number: int
    """The seed."""

    def key(self) -> str:
        """Returns a name for files that identifies everything that determines the result."""

    async def run(self, work: Path, package: Path) -> dict[str, Any]:
        """Trains and evaluates in another process, and returns the result, which has a `return_mean`.

        Args:
            work: A folder for files of this training.
            package: The folder with the copy of the package.

        Raises:
            RuntimeError: The training failed or was stopped, or its config has changed since the benchmark began.
            UserError: The run's metadata is damaged.
        """


def load_finished(training: Training, work: Path) -> dict[str, Any] | None:
    """Returns the kept result of a training, or None if it has not been trained to its end."""
    path = work / f"{training.key()}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


async def train(training: Training, work: Path, package: Path) -> dict[str, Any]:
    """Runs a training, and keeps and returns the result; see `Training.run`."""
    result = await training.run(work, package)
    write_json(training.key(), result, work)
    return result


@dataclass(frozen=True, eq=False)
class Seed:
    """One training of ours: a config with overrides, which include the seed."""

    name: str
    """The name of the task, such as `dqn-acrobot`."""
    config: Path
    number: int
    sets: tuple[str, ...]
    settings: TrainConfig
    """The resolved settings when the benchmark began."""
    code: str
    """`hash_code()` of the package that trains this seed."""

    def key(self) -> str:
        """Returns a name for files that identifies everything that determines the result."""
        identity = {"settings": config_hash(self.settings), "code": self.code, **versions(), **find_engines()}
        return name_result(self.name, self.number, identity)

    async def run(self, work: Path, package: Path) -> dict[str, Any]:
        """Trains and evaluates; see `Training.run`."""
        home, run_dir = work / "home", work / f"run-{self.key()}-{os.getpid()}"
        # The job prevents a second process from training this seed in the same home.
        sets = [*self.sets, f"run_dir={run_dir}", f"job={self.key()}"]
        flags = [word for value in sets for word in ("--set", value)]
        command = ["-m", "rl_training", "train", "--config", str(self.config), *flags, "--no-track", "--json"]
        try:
            summary = await run_json_async(command, home, package)
            result = _make_result(self, summary, run_dir)
            return result | {"promoted": await _evaluate_promoted(summary, result, home, package)}
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)


def name_result(name: str, number: int, identity: Mapping[str, Any]) -> str:
    """Returns the name of the file of a result: the training, its seed, and the hash of all that determines it."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{name}-seed-{number}-{digest[:16]}"


def make_seed(name: str, config: Path, number: int, overrides: Sequence[str], code: str) -> Seed:
    """Returns seed `number` of a config, with `overrides` in addition to the benchmark's own."""
    sets = (*overrides, f"seed={number}", f"evaluation.final_episodes={EPISODES}")
    return Seed(name, config, number, sets, choose_vectorization(load_config(config, sets)), code)


def hash_code() -> str:
    """Returns the hash of the code that determines results."""
    files = [path for path in (ROOT / "rl_training").rglob("*.py") if not _is_silent(path)]
    digest = hashlib.sha256()
    for path in sorted([*files, Path(__file__).resolve()]):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n{strip_code(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def strip_code(source: str) -> str:
    """Returns the syntax tree of a module without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_docstring(statement)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def copy_code(work: Path, code: str) -> Path:
    """Returns a folder with a copy of the package, so that the package may be edited while seeds train."""
    copy = work / f"code-{code[:16]}"
    if not copy.exists():
        beside = work / f".{copy.name}"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(ROOT / "rl_training", beside / "rl_training", ignore=shutil.ignore_patterns("__pycache__"))
        beside.rename(copy)
    return copy


def _make_result(seed: Seed, summary: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    if read_metadata(run_dir)["config_hash"] != config_hash(seed.settings):
        raise RuntimeError(f"{seed.config} has changed while seed {seed.number} was waiting; run the benchmark again")
    evaluation = _read_json(run_dir / "artifacts" / "evaluation.json")
    return {
        "seed": seed.number,
        **{name: evaluation[name] for name in ("return_mean", "return_std", "ci_low", "ci_high", "episodes", "cut")},
        **{name: summary[name] for name in ("num_timesteps", "steps_per_second", "policy_sha256")},
        "returns": evaluation["returns"],
        "training_returns": thin(read_curve(run_dir, "rollout/episode_return_mean")),
        "evaluation_returns": read_curve(run_dir, "eval/return_mean"),
        "health": read_warnings(run_dir),
    }


async def _evaluate_promoted(
    summary: Mapping[str, Any], final: Mapping[str, Any], home: Path, package: Path
) -> dict[str, Any]:
    """Returns the evaluation of the policy that a flow would promote, on the held-out episodes of the final policy.

    It is the best checkpoint by periodic evaluation, or the final one of a run without periodic evaluation.
    """
    names = ("return_mean", "return_std", "ci_low", "ci_high")
    best = summary["best_checkpoint"]
    if best in (None, summary["checkpoint"]):
        return {name: final[name] for name in ("num_timesteps", "policy_sha256", *names)}
    found = await run_json_async(["-m", "rl_training", "evaluate", best, "--json"], home, package)
    return {
        "num_timesteps": found["num_timesteps"],
        "policy_sha256": found["policy_sha256"],
        **{name: found["evaluation"][name] for name in names},
    }


def read_curve(run_dir: Path, metric: str) -> list[list[float]]:
    """Returns [step, value] for each point of a metric in the run's own log."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [[line["step"], line["metrics"][metric]] for line in lines if metric in line.get("metrics", {})]


def read_warnings(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the warnings about training that a run has raised, also those that it has withdrawn.

    Returns:
        A dict for each warning: its `kind`, the `step` at which it was raised, the step at which it was `withdrawn` or
        None, and its `text`. A run keeps the text of the warnings that hold at its end; others have None.

    Raises:
        UserError: The run's metadata is missing or damaged.
    """
    texts = {warning.kind: str(warning) for warning in read_health_warnings(read_metadata(run_dir))}
    found = []
    for kind in KINDS:
        points = read_curve(run_dir, METRIC + kind)  # 1 where it is raised and 0 where it is withdrawn, in turn
        for (step, _), end in zip_longest(points[::2], points[1::2]):
            withdrawn, text = (None, texts.get(kind)) if end is None else (end[0], None)
            found.append({"kind": kind, "step": step, "withdrawn": withdrawn, "text": text})
    return found


def thin(curve: list[list[float]]) -> list[list[float]]:
    """Returns every n-th point, counted from the last, so that about `POINTS` remain."""
    stride = max(1, ceil(len(curve) / POINTS))
    return curve[::-stride][::-1]


def _is_silent(path: Path) -> bool:
    top = path.relative_to(ROOT / "rl_training").parts[0]
    return top.removesuffix(".py").split("_")[0] in SILENT


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def find_engines() -> dict[str, str]:
    """Returns the versions of the simulators that are installed."""
    found = {}
    for name in ENGINES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
