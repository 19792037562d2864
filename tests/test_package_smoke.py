"""The package as it is found and shipped: its version, its parts, its configs, its entry points."""

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import rl_training

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_version_is_the_projects():
    assert rl_training.__version__ == PYPROJECT["project"]["version"] == "0.1.0"


def test_every_package_and_the_configs_are_shipped():
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "rl_training").rglob("__init__.py")}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages | {
        "rl_training.configs",
        "rl_training.deployments",
    }
    assert PYPROJECT["tool"]["setuptools"]["package-dir"] == {
        "rl_training.configs": "configs",
        "rl_training.deployments": ".",
    }
    assert (ROOT / "configs" / "ppo" / "cartpole.yaml").is_file()


def test_types_are_offered():
    assert (ROOT / "rl_training" / "py.typed").is_file()


def test_every_dependency_is_pinned():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    }
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.match(r"[\w-]+", wish)[0].lower() for wish in wanted}
    assert names <= pinned


def test_module_runs_as_the_command_line():
    done = subprocess.run([sys.executable, "-m", "rl_training", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")
