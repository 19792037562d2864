"""The trainings and policies that ours are compared with: Stable-Baselines3, and uniformly random actions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, run_json_async
from benchmarks.learning.runs import EPISODES, find_engines, name_result, strip_code
from rl_training.config.settings import TrainConfig
from rl_training.runs.versions import versions
from rl_training.seeding import episode_seeds

PACKAGES = ("stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium", "mujoco", "box2d")
"""Packages in the environment of Stable-Baselines3 whose versions determine results."""

_FIND_VERSIONS = """
import importlib.metadata as metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, eq=False)
class PeerSeed:
    """One training with Stable-Baselines3, in an environment of its own."""

    algo: str
    env_id: str
    steps: int
    number: int
    arguments: Mapping[str, Any]
    """The arguments of the algorithm that are not its defaults."""
    python: Path
    """The interpreter of Stable-Baselines3's environment."""

    @property
    def name(self) -> str:
        """The name in file names and messages."""
        return f"sb3-{self.algo}-{self.env_id}"

    def task(self) -> dict[str, Any]:
        """Returns the argument of `run_sb3.py`."""
        return {
            **{name: getattr(self, name) for name in ("algo", "env_id", "steps")},
            "seed": self.number,
            "arguments": dict(self.arguments),
            "episode_seeds": episode_seeds(0, "held_out", EPISODES),
        }

    def key(self) -> str:
        """Returns a name for files that identifies everything that determines the result."""
        identity = {"task": self.task(), "code": read_scripts("run_sb3", "episodes"), **find_versions(self.python)}
        return name_result(self.name, self.number, identity)

    async def run(self, work: Path, package: Path) -> dict[str, Any]:
        """Trains and evaluates; see `Training.run`."""
        command = ["-m", "benchmarks.learning.run_sb3", json.dumps(self.task())]
        return await run_json_async(command, work / "home", ROOT, python=self.python)


@dataclass(frozen=True, eq=False)
class RandomPolicy:
    """The evaluation of uniformly random actions on the held-out episodes of an environment."""

    config: TrainConfig
    """The settings of a training in this environment."""
    number: int = 0

    @property
    def name(self) -> str:
        """The name in file names and messages."""
        return f"random-{self.config.env_id.rpartition(':')[2].replace('/', '-')}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the environment of evaluation."""
        names = {"env_id", "env_kwargs", "wrappers", "reset_options", "max_episode_steps"}
        if self.config.mask_key is not None:
            names.add("action_mask")
        return self.config.for_evaluation().model_dump(mode="json", include=names)

    def key(self) -> str:
        """Returns a name for files that identifies everything that determines the result."""
        own = {"settings": self.settings, "code": read_scripts("run_random"), "episodes": EPISODES}
        return name_result(self.name, self.number, own | versions() | find_engines())

    async def run(self, work: Path, package: Path) -> dict[str, Any]:
        """Plays the episodes; see `Training.run`."""
        return await run_json_async(
            ["-m", "benchmarks.learning.run_random", json.dumps(self.settings)], work / "home", ROOT
        )


@cache
def read_scripts(*names: str) -> str:
    """Returns the code of scripts in this folder, without comments, docstrings and layout."""
    return "\n".join(strip_code(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")) for name in names)


@cache
def find_versions(python: Path) -> dict[str, str]:
    """Returns the versions of an interpreter and of the packages in its environment."""
    command = [str(python), "-c", _FIND_VERSIONS, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
