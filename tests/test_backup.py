"""A backup is complete or not there, and a restore verifies all of it before it touches anything."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_training.errors import UserError
from rl_training.maintenance.backup import back_up, restore


def use(monkeypatch: pytest.MonkeyPatch, stack: Path) -> None:
    """Names the databases and artifacts of a stack as its servers have them."""
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"sqlite:///{stack}/mlflow.db")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{stack}/prefect.db")
    monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", str(stack / "artifacts"))


def rows(path: Path) -> list[tuple[int]]:
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT number FROM things ORDER BY number").fetchall()
    finally:
        database.close()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two databases in WAL mode with a row each, and two artifacts."""
    folder = tmp_path / "old"
    (folder / "artifacts" / "1" / "run").mkdir(parents=True)
    (folder / "artifacts" / "1" / "run" / "model.pt").write_bytes(b"weights")
    (folder / "artifacts" / "note.txt").write_text("hello")
    for i, name in enumerate(("mlflow", "prefect")):
        database = sqlite3.connect(folder / f"{name}.db")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE things (number INTEGER)")
        database.execute("INSERT INTO things VALUES (?)", (i,))
        database.commit()
        database.close()
    use(monkeypatch, folder)
    return folder


def test_a_backup_is_restored_to_an_empty_stack(stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = sqlite3.connect(stack / "mlflow.db")  # a server that runs, with a change in its journal
    writer.execute("INSERT INTO things VALUES (7)")
    writer.commit()
    folder = tmp_path / "backups" / "monday"
    assert back_up(folder).files == 5
    writer.close()
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=False)
    assert sums.returncode == 0
    assert folder.stat().st_mode & 0o077 == 0  # databases have secrets of their own
    assert [path.name for path in folder.parent.iterdir()] == ["monday"]

    use(monkeypatch, tmp_path / "new")
    assert restore(folder).files == 5
    assert rows(tmp_path / "new" / "mlflow.db") == [(0,), (7,)]
    assert rows(tmp_path / "new" / "prefect.db") == [(1,)]
    assert (tmp_path / "new" / "artifacts" / "1" / "run" / "model.pt").read_bytes() == b"weights"
    assert (tmp_path / "new" / "artifacts" / "note.txt").read_text() == "hello"
    with pytest.raises(UserError, match="artifacts is not empty, expected a new folder"):
        restore(folder)
    with pytest.raises(UserError, match="elsewhere does not exist, expected the folder of a backup"):
        restore(tmp_path / "elsewhere")
    (tmp_path / "new" / "artifacts").rename(tmp_path / "new" / "aside")
    with pytest.raises(UserError, match=r"prefect\.db is not empty, expected a new database"):
        restore(folder)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda folder: (folder / "mlflow.sqlite").write_bytes(b"x"), "mlflow.sqlite has changed"),
    "missing": (lambda folder: (folder / "artifacts" / "note.txt").unlink(), "note.txt is missing"),
    "added": (lambda folder: (folder / "artifacts" / "more").write_text("x"), "more was added"),
    "link": (lambda folder: (folder / "artifacts" / "l").symlink_to("/etc"), "is a link"),
    "no description": (lambda folder: (folder / "backup.json").unlink(), "no complete backup"),
    "newer format": (
        lambda folder: (folder / "backup.json").write_text('{"format": 2}'),
        "no complete backup of this version",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_changes_nothing(
    stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = tmp_path / "backup"
    back_up(folder)
    change, message = DAMAGES[damage]
    change(folder)
    use(monkeypatch, tmp_path / "new")
    with pytest.raises(UserError, match=message):
        restore(folder)
    assert not (tmp_path / "new").exists()


def test_a_backup_that_fails_leaves_nothing(stack: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups" / "monday"
    (stack / "artifacts" / "link").symlink_to("/etc")
    with pytest.raises(UserError, match="is a link"):
        back_up(folder)
    assert list(folder.parent.iterdir()) == []
    (stack / "artifacts" / "link").unlink()
    back_up(folder)
    with pytest.raises(UserError, match="exists, expected a new folder"):
        back_up(folder)


def test_a_folder_that_cannot_be_made_is_a_sentence(stack: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, fault in ((tmp_path / "file" / "monday", "File exists"), (Path("/proc/monday"), "No such file")):
        with pytest.raises(UserError, match=rf"the backup can't be written: \[Errno \d+\] {fault}"):
            back_up(place)


def test_what_a_killed_process_has_left_is_removed_by_the_next(
    stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    def leave(name: str) -> None:
        rest = tmp_path / "backups" / f".tmp-{name}"
        rest.mkdir(parents=True)
        (rest / "prefect.sqlite").write_text("half")

    leave(f"{ended.pid}-monday")
    leave(f"{ended.pid}-tuesday")  # of a backup of another name, which may be of another machine
    leave(f"{os.getppid()}-monday")  # of a process that is still writing
    back_up(tmp_path / "backups" / "monday")
    names = [f".tmp-{ended.pid}-tuesday", f".tmp-{os.getppid()}-monday", "monday"]
    assert sorted(path.name for path in (tmp_path / "backups").iterdir()) == sorted(names)

    new = tmp_path / "new"
    (new / f".tmp-{ended.pid}-artifacts" / "1").mkdir(parents=True)
    (new / f".tmp-{ended.pid}-mlflow.db").write_text("half")
    use(monkeypatch, new)
    restore(tmp_path / "backups" / "monday")
    assert sorted(path.name for path in new.iterdir()) == ["artifacts", "mlflow.db", "prefect.db"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MLFLOW_BACKEND_STORE_URI", "", "is not set, expected the address of mlflow's database"),
        ("MLFLOW_BACKEND_STORE_URI", "mysql://u:secret@host/db", "is mysql://u:.*@host/db, expected PostgreSQL"),
        ("MLFLOW_ARTIFACTS_DESTINATION", "s3://bucket", "expected the folder"),
    ],
)
def test_a_stack_that_is_not_known_is_refused(
    stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message) as error:
        back_up(tmp_path / "backup")
    assert "secret" not in str(error.value)
    assert os.listdir(tmp_path) == ["old"]  # noqa: PTH208


def test_a_backup_among_the_artifacts_is_refused(stack: Path) -> None:
    for place in ("artifacts/monday", "artifacts/1/../2/monday"):
        with pytest.raises(UserError, match="is among the artifacts that are backed up, expected a folder elsewhere"):
            back_up(stack / place)
    assert sorted(path.name for path in (stack / "artifacts").iterdir()) == ["1", "note.txt"]


def test_only_the_owner_can_read_what_is_written(stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        back_up(tmp_path / "monday")
        use(monkeypatch, tmp_path / "new")
        restore(tmp_path / "monday")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    written = [*(tmp_path / "monday").rglob("*"), *(tmp_path / "new").rglob("*")]
    assert len(written) > 8
    assert not [path for path in written if path.stat().st_mode & 0o077]
