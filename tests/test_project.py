"""`rl-training init`: the project that it makes works, and upgrades lose nothing of the user's."""

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
from rl_training.project import project_files, upgrade
from rl_training.project.new_project import choose_package, init
from rl_training.project.record import FILE, read_record
from rl_training.services.prefect_yaml import read_prefect_yaml

ROOT = Path(__file__).resolve().parents[1]


def no(text: str, question: str) -> bool:
    return False


def yes(text: str, question: str) -> bool:
    return True


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
    built = stages[1]["FROM install AS install-worker"]
    assert 'pip install --constraint constraints.txt "$(ls wheels/rl_training-*.whl)[box2d,mujoco,optuna]"' in built
    kept = (project / ".dockerignore").read_text()
    for copied in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", theirs, re.MULTILINE):
        for name in copied.split():
            assert name == "." or f"!{name}\n" in kept, name
    worker = stages[1]["FROM rendering AS worker"]
    modes = re.findall(r"^COPY (?!--from)--chmod=(\d+) (\S+) ", worker, re.MULTILINE)  # whatever the owner's umask is
    assert modes == [("755", "docker/with_password.sh"), ("644", "prefect.yaml"), ("755", "configs")]


def test_the_compose_file_is_ours(project: Path) -> None:
    assert (project / "docker-compose.yml").read_text() == (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load((project / "docker-compose.yml").read_text())["services"]
    assert services["worker"]["build"]["dockerfile"] == "docker/Dockerfile"


@pytest.mark.parametrize(
    ("folder", "given", "package"),
    [("my-robot", None, "my_robot"), ("Lab 3 (new)", None, "lab_3_new"), ("x", "own_name", "own_name")],
)
def test_names_of_packages(folder: str, given: str | None, package: str) -> None:
    assert choose_package(folder, given) == package


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("3d", r"got '3d' for the name of the package, expected lower-case letters.*--package NAME"),
        ("class", r"got 'class' for the name of the package"),
        ("json", r"the package json exists already; choose another name with --package NAME"),
        ("tests", r"the package tests exists already"),
        ("gymnasium", r"the package gymnasium exists already"),
        ("---", r"got '' for the name"),
    ],
)
def test_names_that_no_package_can_have(folder: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_package(folder, None)


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


def test_only_a_wheel_of_ours_is_kept(tmp_path: Path) -> None:
    other = tmp_path / "numpy-2.0-py3-none-any.whl"
    other.write_bytes(b"")
    with pytest.raises(UserError, match=r"--wheel: got .*numpy.*, expected a file rl_training-\*\.whl"):
        init(tmp_path / "robot_arm", wheel=other)
    assert not (tmp_path / "robot_arm").exists()


# Upgrades.


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that writes one file differently, and one more."""
    old = project_files.render_files

    def render(package: str) -> dict[str, str]:
        files = old(package)
        return files | {"pyproject.toml": files["pyproject.toml"] + "# newer\n", "docs/page.md": "a page\n"}

    monkeypatch.setattr(upgrade, "render_files", render)


def test_nothing_is_asked_if_nothing_is_new(project: Path) -> None:
    def never(text: str, question: str) -> bool:
        raise AssertionError(question)

    (project / "README.md").write_text("my own words\n")  # only the user has changed it
    (project / ".env").unlink()
    result = upgrade.upgrade(project, never)
    assert result.taken == result.left == ()
    assert (project / "README.md").read_text() == "my own words\n"
    assert not (project / ".env").exists()


@pytest.mark.usefixtures("newer")
def test_what_is_new_is_shown_and_taken_file_by_file(project: Path) -> None:
    shown: list[tuple[str, str]] = []

    def ask(text: str, question: str) -> bool:
        shown.append((text, question))
        return "page" in question

    before = (project / "pyproject.toml").read_text()
    result = upgrade.upgrade(project, ask)
    assert [question for _, question in shown] == ["take the new pyproject.toml?", "take the new docs/page.md?"]
    assert shown[0][0].startswith("pyproject.toml: you have not changed this file\n--- pyproject.toml\n")
    assert shown[0][0].endswith("\n+# newer")
    assert (result.taken, result.left) == (("docs/page.md",), ("pyproject.toml",))
    assert (project / "pyproject.toml").read_text() == before
    assert (project / "docs" / "page.md").read_text() == "a page\n"
    assert upgrade.upgrade(project, yes).taken == ("pyproject.toml",)  # what was left is asked again
    assert (project / "pyproject.toml").read_text() == before + "# newer\n"
    assert upgrade.upgrade(project, yes).taken == ()


@pytest.mark.usefixtures("newer")
def test_the_users_text_is_kept_beside_the_new_one(project: Path) -> None:
    (project / "pyproject.toml").write_text("mine\n")
    assert upgrade.upgrade(project, no).left == ("pyproject.toml", "docs/page.md")
    assert (project / "pyproject.toml").read_text() == "mine\n"
    upgrade.upgrade(project, yes)
    assert (project / "pyproject.toml").read_text().endswith("# newer\n")
    assert (project / "pyproject.toml.before-upgrade").read_text() == "mine\n"


def test_a_newer_wheel_replaces_the_old_one_if_the_user_agrees(project: Path, tmp_path: Path) -> None:
    old, new = (tmp_path / f"rl_training-0.{minor}.0-py3-none-any.whl" for minor in (1, 2))
    for wheel in (old, new):
        wheel.write_bytes(wheel.name.encode())
    assert upgrade.upgrade(project, yes, wheel=old).wheel == old.name
    assert upgrade.upgrade(project, no, wheel=new).wheel == old.name
    assert upgrade.upgrade(project, yes, wheel=new).wheel == new.name
    assert [path.name for path in (project / "wheels").iterdir()] == [new.name]


@pytest.mark.parametrize("text", [None, "{", '{"package": "a b", "files": {}}'])
def test_another_folder_is_not_upgraded(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match="is not a project that" if text is None else "can't be read"):
        upgrade.upgrade(tmp_path, yes)


def test_nobody_can_answer_without_a_terminal(project: Path) -> None:
    (project / FILE).write_text(json.dumps({"package": "my_robot", "files": {}}))
    (project / ".env").write_text("COMPOSE_PROJECT_NAME=other\n")
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", "init", "--upgrade", str(project)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Nobody can answer, because stdin is no terminal; use --yes to take everything" in done.stderr
    assert (project / ".env").read_text() == "COMPOSE_PROJECT_NAME=other\n"
