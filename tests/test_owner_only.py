"""The files in the home are the owner's alone, whatever the umask, which stays the same for other files."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_training.security import owner_only_files
from rl_training.system import paths


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_a_home_that_is_made_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "chosen"))
    made = [paths.home(), paths.runs_root(), paths.locks_root(), paths.downloads_root(), paths.prefect_root()]
    assert [mode(path) for path in made] == ["0o700"] * 5
    (tmp_path / "by_an_environment").touch()
    assert mode(tmp_path / "by_an_environment") == "0o666"


def test_a_chosen_home_stays_as_wide_as_it_is_and_the_folders_of_ours_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("runs", "locks", "downloads", "prefect")]
    for folder in folders:
        folder.mkdir()
    tmp_path.chmod(0o775)
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    for root in (paths.runs_root, paths.locks_root, paths.downloads_root, paths.prefect_root):
        root()
    assert mode(tmp_path) == "0o775"
    assert [mode(folder) for folder in folders] == ["0o777", "0o700", "0o700", "0o700"]


def test_the_default_home_is_tightened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_TRAINING_HOME", raising=False)
    monkeypatch.setattr("platformdirs.user_data_path", lambda *names, **options: tmp_path / "rl_training")
    (tmp_path / "rl_training").mkdir(mode=0o755)
    assert mode(paths.home()) == "0o700"


def test_a_store_is_its_owners_alone_from_its_first_moment_and_an_older_embedded_one_becomes_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_training.tracking.mlflow_store import connect

    database, named = tmp_path / "mlflow.db", tmp_path / "named.db"
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    connect(f"sqlite:///{database}")
    assert mode(database) == "0o600"
    shutil.copy(database, named)
    for store in (database, named):
        store.chmod(0o644)
        connect(f"sqlite:///{store}")
    assert (mode(database), mode(named)) == ("0o600", "0o644")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.touch(0o644)
    (tmp_path / "link").symlink_to(target)
    owner_only_files.tighten(tmp_path / "link")
    owner_only_files.tighten(tmp_path / "nothing")
    assert mode(target) == "0o644"
