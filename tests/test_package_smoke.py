"""The package as it is installed: its version, modules, configs and entry points."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

import rl_training

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_version_is_the_projects():
    assert rl_training.__version__ == PYPROJECT["project"]["version"] == "0.2.0"


def test_every_package_and_the_configs_are_shipped():
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "rl_training").rglob("__init__.py")}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages | {
        "rl_training.configs",
        "rl_training.deployments",
        "rl_training.shipped_sweeps",
    }
    assert PYPROJECT["tool"]["setuptools"]["package-dir"] == {
        "rl_training.configs": "configs",
        "rl_training.deployments": ".",
        "rl_training.shipped_sweeps": "sweeps",
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
    assert (done.returncode, done.stdout.strip()) == (0, "0.2.0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    source = folder / "source"
    source.mkdir()
    folders = ("rl_training", "configs", "sweeps", "flows", "docker")
    files = (
        "prefect.yaml",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "constraints.txt",
        "docker-compose.yml",
        "docker-compose.tls.yml",
    )
    for name in (*folders, *files):
        (source / name).symlink_to(ROOT / name)
    done = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_installs_one_top_level_name(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"rl_training"}
    assert {"rl_training/configs/ppo/cartpole.yaml", "rl_training/deployments/prefect.yaml"} <= set(names)
    assert "rl_training/shipped_sweeps/ppo_cartpole.yaml" in names


def test_a_project_made_from_the_wheel_equals_one_made_from_the_clone(wheel, tmp_path):
    site, made = tmp_path / "site", {}
    zipfile.ZipFile(wheel).extractall(site)
    for source in (site, ROOT):
        folder = tmp_path / source.name / "my_robot"
        folder.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "rl_training", "init", str(folder), "--wheel", str(wheel)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made[source] = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert made[site] == made[ROOT]
    assert made[site][Path("wheels") / wheel.name] == wheel.read_bytes()


FIND_FLOWS = """
from datetime import datetime, UTC
from rl_training.services.prefect_environment import prepare_prefect
with prepare_prefect():
    from prefect.flows import load_flow_from_entrypoint
    from rl_training.services.prefect_yaml import find_prefect_yaml, read_prefect_yaml
    file = find_prefect_yaml()
    print(file)
    print(len(read_prefect_yaml(file, datetime.now(UTC))))
    print(load_flow_from_entrypoint("rl_training.flows.train.train_flow").fn.__code__.co_filename)
"""


def test_an_installed_wheel_deploys_its_own_flows_in_a_project_that_has_a_folder_of_that_name(wheel, tmp_path):
    site, project = tmp_path / "site", tmp_path / "project"
    zipfile.ZipFile(wheel).extractall(site)
    (project / "flows").mkdir(parents=True)
    (project / "flows" / "train.py").write_text("raise RuntimeError('the project has a train of its own')")
    variables = {**os.environ, "PYTHONPATH": str(site), "RL_TRAINING_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", FIND_FLOWS]  # with the working directory on the path, as for `python -m prefect`
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    file, count, train = done.stdout.splitlines()
    assert Path(file) == site / "rl_training/deployments/prefect.yaml"
    assert int(count) >= 22
    assert Path(train) == site / "rl_training/flows/train.py"
