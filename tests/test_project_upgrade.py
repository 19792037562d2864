"""`rl-training init --upgrade`: what is new is taken file by file, and nothing of the user is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_training import __version__
from rl_training.errors import UserError
from rl_training.project import project_files, upgrade
from rl_training.project.new_project import init
from rl_training.project.record import FILE, read_record
from tests.project_wheels import write_wheel


def no(text: str, question: str) -> bool:
    return False


def yes(text: str, question: str) -> bool:
    return True


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return init(tmp_path / "my-robot").folder


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


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("version", ["0.10.0", "0.2.1rc1", "1.0"])
def test_an_older_version_takes_nothing_back(project: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    def never(text: str, question: str) -> bool:
        raise AssertionError(question)

    monkeypatch.setattr(upgrade, "__version__", "0.2.0")
    path = project / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version, "of_a_later_version": 1}))
    before = path.read_text()
    message = (
        rf"{project} was written by rl_training {version}, and this is the older 0\.2\.0, which would take changes "
        rf"back; install the wheel of {version} or newer, then repeat the command"
    )
    with pytest.raises(UserError, match=message):
        upgrade.upgrade(project, never)
    assert path.read_text() == before


def test_an_earlier_version_is_named_by_the_upgrade(project: Path) -> None:
    path = project / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.1.10"}))
    assert upgrade.upgrade(project, yes).before == "0.1.10"
    assert read_record(project).version == __version__


def test_a_newer_wheel_replaces_the_old_one_if_the_user_agrees(project: Path, tmp_path: Path) -> None:
    old, new = (tmp_path / f"rl_training-0.{minor}.0-py3-none-any.whl" for minor in (1, 2))
    for wheel in (old, new):
        write_wheel(wheel, f"rl_training-{wheel.name.split('-')[1]}.dist-info/METADATA")
    assert upgrade.upgrade(project, yes, wheel=old).wheel == old.name
    assert upgrade.upgrade(project, no, wheel=new).wheel == old.name
    assert upgrade.upgrade(project, yes, wheel=new).wheel == new.name
    assert sorted(path.name for path in (project / "wheels").iterdir()) == [".gitkeep", new.name]


def test_another_folder_is_not_upgraded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a project that `rl-training init` made"):
        upgrade.upgrade(tmp_path, yes)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 3}, "version: got 3, expected a valid string"),
        ({"version": "newest"}, "version: got 'newest', expected a version such as 0.2.0"),
        ({"package": "a b"}, "package: got 'a b', expected pattern '^[a-z_][a-z0-9_]*$'"),
        ({"files": {"README.md": None}}, "files.README.md: got None, expected a valid string"),
        ({"files": ["README.md"]}, "files: got ['README.md'], expected a valid dictionary"),
        ({"files": ...}, "files: is required and missing"),
        ({"version": ...}, "version: is required and missing"),
    ],
)
def test_a_broken_record_is_described(project: Path, change: dict[str, Any], fault: str) -> None:
    record = json.loads((project / FILE).read_text()) | change
    (project / FILE).write_text(json.dumps({key: value for key, value in record.items() if value is not ...}))
    with pytest.raises(UserError) as caught:
        upgrade.upgrade(project, yes)
    advice = "restore the file, for example by `git checkout .rl-training.json` in that folder"
    assert str(caught.value) == f"{project / FILE} can't be read: {fault}; {advice}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{", "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "got [1], expected a valid dictionary"),
    ],
)
def test_a_record_that_is_no_json_object_is_described(project: Path, text: str, fault: str) -> None:
    (project / FILE).write_text(text)
    with pytest.raises(UserError) as caught:
        upgrade.upgrade(project, yes)
    assert str(caught.value).startswith(f"{project / FILE} can't be read: {fault}")


def test_nobody_can_answer_without_a_terminal(project: Path) -> None:
    (project / FILE).write_text(json.dumps({"version": __version__, "package": "my_robot", "files": {}}))
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
