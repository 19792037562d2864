"""`rl-training init`: the project that it makes works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from rl_training.errors import UserError
from rl_training.project import project_files
from rl_training.project.new_project import choose_package, init
from rl_training.project.record import FILE, read_record
from rl_training.services.prefect_yaml import read_prefect_yaml
from tests.project_wheels import write_wheel

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return init(tmp_path / "my-robot").folder


def run(folder: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_projects_own_tests_pass(project: Path) -> None:
    assert "2 passed" in run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.slow
def test_its_config_learns(project: Path) -> None:
    summary = json.loads(
        run(project, "-m", "rl_training", "train", "--config", "configs/tank.yaml", "--no-track", "--json")
    )
    assert summary["evaluation"]["return_mean"] > -12  # uniformly random actions come to -22


def test_its_deployments_are_valid_and_use_its_config(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    deployments = read_prefect_yaml(Path("prefect.yaml"), datetime(2026, 1, 1, tzinfo=UTC))
    assert [d.name for d in deployments] == ["train-flow/tank", "retrain-flow/tank", "resume-flow/default"]
    assert [text for d in deployments for text in d.warnings] == []
    assert deployments[1].schedules[0].times[0] == datetime(2026, 1, 1, 3, tzinfo=UTC)


def test_files_and_their_modes(project: Path) -> None:
    record = read_record(project)
    assert record.package == "my_robot"
    assert {path for path in project.rglob("*") if path.is_file()} == {project / name for name in [*record.files, FILE]}
    for name in project_files.EXECUTABLE:
        assert os.access(project / name, os.X_OK), name
    assert "my_robot.tank:Tank-v0" in (project / "configs" / "tank.yaml").read_text()
    assert (project / ".env").read_text().splitlines()[-1] == "IMAGE_TAG=my-robot"
    for path in project.rglob("*"):
        assert path.is_dir() or path.parent.name == "pools" or not re.search(r"{{|}} ", path.read_text()), path


def test_its_images_are_ours_but_for_the_worker(project: Path) -> None:
    ours, theirs = ((folder / "docker" / "Dockerfile").read_text() for folder in (ROOT, project))
    split = re.compile(r"^(?=FROM )", re.MULTILINE)
    stages = [{stage.splitlines()[0]: stage for stage in split.split(text)} for text in (ours, theirs)]
    assert stages[0].keys() == stages[1].keys()
    names = [name.rpartition(" ")[2] for name in stages[0] if stages[0][name] != stages[1][name]]
    assert names == ["install-server", "install-worker", "worker"]  # the first one but for the comment that follows it
    kept = (project / ".dockerignore").read_text()
    for copied in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", theirs, re.MULTILINE):
        for name in copied.split():
            assert name == "." or f"!{name}\n" in kept, name
    worker = stages[1]["FROM rendering AS worker"]
    modes = re.findall(r"^COPY (?!--from)--chmod=(\d+) (\S+) ", worker, re.MULTILINE)  # whatever the owner's umask is
    assert modes == [("755", "docker/with_password.sh"), ("644", "prefect.yaml"), ("755", "configs")]


@pytest.mark.parametrize(
    ("kept", "installed", "told"),
    [
        (["0.2.0"], "wheels/rl_training-0.2.0-py3-none-any.whl[box2d,mujoco,optuna]", ""),
        ([], None, "wheels/ holds no wheel of rl_training; copy the one that you installed there"),
        (
            ["0.1.0", "0.2.0"],
            None,
            "wheels/ holds 2 wheels of rl_training, and the image installs one; remove the others",
        ),
    ],
)
def test_the_image_of_the_worker_needs_one_wheel(
    project: Path, tmp_path: Path, kept: list[str], installed: str | None, told: str
) -> None:
    for version in kept:
        (project / "wheels" / f"rl_training-{version}-py3-none-any.whl").touch()
    text = (project / "docker" / "Dockerfile").read_text().replace("\\\n", "")
    (command,) = re.findall(r"^RUN (.*rl_training-.*)$", text, re.MULTILINE)
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text('#!/bin/sh\necho "$@"\n')
    pip.chmod(0o755)
    env = {**os.environ, "PATH": os.pathsep.join([str(pip.parent), os.environ["PATH"]])}
    done = subprocess.run(["sh", "-c", command], cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == (1 if installed is None else 0)
    assert done.stdout == ("" if installed is None else f"install --constraint constraints.txt {installed}\n")
    assert done.stderr.strip() == told


def test_git_keeps_the_folder_of_a_wheel_that_is_yet_to_come(project: Path) -> None:
    told = "wheels/ holds no wheel of rl_training, which the worker's image installs; copy the one that you installed "
    assert told + "there" in init(project.parent / "another").lines()
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=project, check=True)
    listed = subprocess.run(["git", "ls-files", "wheels"], cwd=project, check=True, capture_output=True, text=True)
    assert listed.stdout == "wheels/.gitkeep\n"


def test_no_file_names_one_that_the_project_lacks(project: Path) -> None:
    for path in project.rglob("*"):
        if path.is_file():
            for named in re.findall(r"docs/[\w./-]+", path.read_text()):
                assert (project / named).exists(), (path, named)


def test_the_compose_file_is_ours(project: Path) -> None:
    assert (project / "docker-compose.yml").read_text() == (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load((project / "docker-compose.yml").read_text())["services"]
    assert services["worker"]["build"]["dockerfile"] == "docker/Dockerfile"


@pytest.mark.parametrize(
    ("folder", "given", "package"),
    [("my-robot", None, "my_robot"), ("Lab 3 (new)", None, "lab_3_new"), ("x", "own_name", "own_name")],
)
def test_names_of_packages(tmp_path: Path, folder: str, given: str | None, package: str) -> None:
    assert choose_package(tmp_path / folder, given) == package


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("3d", r"got '3d' for the name of the package, expected lower-case letters.*--package NAME"),
        ("---", r"got '' for the name"),
        ("class", r"got 'class' for the name of the package, a keyword of Python that no import can name; choose ano"),
        ("json", r"got 'json' .*, which a module of Python's standard library has; choose another .* --package NAME"),
        ("sitecustomize", r"got 'sitecustomize' .*, which Python would import at each start; choose another name"),
        ("usercustomize", r"got 'usercustomize' .*, which Python would import at each start; choose another name"),
        ("tests", r"got 'tests' .*, which another folder of the project has; choose another name"),
        ("build", r"got 'build' .*, which another folder of the project has; choose another name"),
        ("gymnasium", r"got 'gymnasium' .*, which an installed package has; choose another name"),
        ("rl-training", r"got 'rl_training' .*, which an installed package has; choose another name"),
        ("pyyaml", r"got 'pyyaml' .*, which an installed package has; choose another name"),  # its module is yaml
    ],
)
def test_names_that_no_package_can_have(tmp_path: Path, folder: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_package(tmp_path / folder, None)


def test_an_empty_folder_on_the_path_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "robot_arm").mkdir()  # from which Python would make a namespace package
    monkeypatch.syspath_prepend(tmp_path)
    assert init(tmp_path / "robot_arm").package == "robot_arm"


def test_init_in_a_project_whose_package_is_installed_names_the_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "robot_arm")
    monkeypatch.syspath_prepend(tmp_path / "robot_arm")
    with pytest.raises(UserError, match=r"it holds a project, into which `rl-training init --upgrade "):
        init(tmp_path / "robot_arm")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(
            UserError, match=r"is not an empty folder, expected a new or empty one; name another folder$"
        ):
            init(place, package="own_name")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_with_a_project_can_be_upgraded_instead(tmp_path: Path) -> None:
    folder = init(tmp_path / "my robot").folder
    with pytest.raises(
        UserError, match=rf"it holds a project, into which `rl-training init --upgrade '{folder}'` takes"
    ):
        init(folder)


def test_the_command_that_comes_next_can_be_pasted(tmp_path: Path) -> None:
    told = init(tmp_path / "My Robot é").lines()
    assert f"next: cd '{tmp_path}/My Robot é' && pip install --editable '.[dev]' && pytest" in told


def test_a_clone_of_an_empty_repository_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert init(tmp_path, package="own_name").package == "own_name"


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("numpy-2.0-py3-none-any.whl", "rl_training-0.2.0.dist-info/METADATA"),
        ("rl_training-0.2.0-py3-none-any.whl", "numpy-2.0.dist-info/METADATA"),
        ("rl_training-0.2.0-py3-none-any.whl", None),
    ],
)
def test_only_a_wheel_of_ours_is_kept(tmp_path: Path, name: str, metadata: str | None) -> None:
    other = tmp_path / name
    other.write_bytes(b"not an archive") if metadata is None else write_wheel(other, metadata)
    with pytest.raises(UserError, match=rf"--wheel: got .*{name}, expected a wheel rl_training-\*\.whl"):
        init(tmp_path / "robot_arm", wheel=other)
    assert not (tmp_path / "robot_arm").exists()
