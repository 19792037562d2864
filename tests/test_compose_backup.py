"""docker/backup.sh and docker/restore.sh refuse what they must before they ask the engine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REACHED = "the engine was asked"


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell whose `docker` says that it was called, and fails."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f"#!/bin/sh\necho {REACHED} >&2\nexit 1\n")
    docker.chmod(0o755)
    return {**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"}


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A complete backup."""
    folder = tmp_path / "monday"
    files = {
        "backup.json": b'{"format": 1, "dumps": ["prefect.pgdump", "mlflow.pgdump"]}\n',
        "prefect.pgdump": b"flow runs",
        "mlflow.pgdump": b"runs",
        "artifacts/1/run/model.pt": b"weights",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def run(script: str, folder: Path, engine: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [ROOT / "docker" / script, folder.name], cwd=folder.parent, env=engine, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_a_backup_that_is_complete_reaches_the_engine(backup: Path, engine: dict[str, str]) -> None:
    assert run("restore.sh", backup, engine) == (1, f"{REACHED}\n")


def change(folder: Path) -> None:
    (folder / "artifacts" / "1" / "run" / "model.pt").write_bytes(b"Weights")


def add(folder: Path) -> None:
    (folder / "artifacts" / "more").write_bytes(b"")


def remove(folder: Path) -> None:
    (folder / "artifacts" / "1" / "run" / "model.pt").unlink()


def link(folder: Path) -> None:
    (folder / "mlflow.pgdump").unlink()
    (folder / "mlflow.pgdump").symlink_to("prefect.pgdump")


def list_another(folder: Path) -> None:
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  /etc/passwd\n")


def renew(folder: Path) -> None:
    (folder / "backup.json").write_text('{"format": 2, "dumps": []}\n')


def cut_off(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change, "monday has changed since it was written: the backup is damaged"),
        (add, "are missing or were added since SHA256SUMS was written: the backup is damaged"),
        (remove, "are missing or were added since SHA256SUMS was written: the backup is damaged"),
        (list_another, "are missing or were added since SHA256SUMS was written: the backup is damaged"),
        (link, "this is a link or not a regular file, which no backup has: "),
        (renew, "backup.json has another format than 1; use a newer version"),
        (cut_off, "monday has no SHA256SUMS, expected a complete backup of PostgreSQL"),
    ],
)
def test_a_damaged_backup_is_refused_before_the_engine_is_asked(
    backup: Path, engine: dict[str, str], damage: Callable[[Path], None], message: str
) -> None:
    damage(backup)
    code, said = run("restore.sh", backup, engine)
    assert code == 2
    assert message in said
    assert REACHED not in said


def test_a_backup_never_replaces_another(backup: Path, engine: dict[str, str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in backup.rglob("*")}
    code, said = run("backup.sh", backup, engine)
    assert (code, REACHED in said) == (2, False)
    assert "monday exists, expected a new folder; a backup never replaces another" in said
    assert {path: path.stat().st_mtime_ns for path in backup.rglob("*")} == before


def test_a_backup_that_fails_leaves_nothing(tmp_path: Path, engine: dict[str, str]) -> None:
    folder = tmp_path / "backups" / "monday"
    folder.parent.mkdir()
    assert run("backup.sh", folder, engine) == (1, f"{REACHED}\n")
    assert list(folder.parent.iterdir()) == []
