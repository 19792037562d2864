"""Links in the directory of a received run: no file outside it is read, sent, written or removed through them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rl_training.cli.app import run
from rl_training.runs.metadata import find_run_in_home, read_metadata
from rl_training.runtime.checkpoint.staging import prepare
from tests.received_runs import listing, made_elsewhere, received


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_elsewhere(tmp_path_factory.mktemp("made"))


LINKED = [
    "replay", "checkpoints", "checkpoints/.tmp-1-x", "checkpoints/step_000000000064", "checkpoints/best.json",
    "checkpoints/step_000000000064/policy.pt", "artifacts", "artifacts/notes.txt", "metadata.json", "config.yaml",
    "metrics.jsonl", "training.lock", "tracking.json", "shipped.json",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("command", ["resume", "sync"])
def test_a_link_is_refused_by_name_and_what_it_leads_to_stays(made, tmp_path, monkeypatch, capsys, name, command):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    gift = received(made, tmp_path / "received", {})
    planted, outside = gift / name, tmp_path / "outside"
    planted.parent.mkdir(exist_ok=True)
    if planted.is_dir():
        shutil.move(planted, outside)
    else:
        outside.mkdir()
        (outside / "mine.pt").write_text("mine")
        if planted.suffix and planted.name != ".tmp-1-x":
            planted.unlink(missing_ok=True)
    target = outside if not planted.suffix or planted.name == ".tmp-1-x" else outside / "mine.pt"
    planted.symlink_to(target)
    before, before_gift = listing(outside), listing(gift)
    words = ["--no-track"] if command == "resume" else []
    assert run([command, str(gift), *words]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"{planted} is a link" in errors[0]
    assert (listing(outside), listing(gift)) == (before, before_gift)


def test_a_pipe_does_not_hang_a_command(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    gift = received(made, tmp_path / "received", {})
    (gift / "metadata.json").unlink()
    os.mkfifo(gift / "metadata.json")
    assert run(["resume", str(gift), "--no-track"]) == 2
    assert f"{gift}/metadata.json is a link or not a regular file" in capsys.readouterr().err


def test_the_path_to_a_run_may_have_links(made, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    (tmp_path / "shelf").mkdir()
    gift = received(made, tmp_path / "shelf" / "received", {})
    (tmp_path / "link").symlink_to(gift)
    assert run(["evaluate", str(tmp_path / "link")]) == 0


def test_a_link_in_the_home_leads_to_no_run_of_the_home(made, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    gift, runs = received(made, tmp_path / "received", {}), tmp_path / "home" / "runs"
    run_uid = read_metadata(gift)["run_uid"]
    runs.mkdir(parents=True)
    (runs / "a").symlink_to(gift)
    assert find_run_in_home(run_uid) is None
    shutil.copytree(gift, runs / "b")
    assert find_run_in_home(run_uid) == runs / "b"


def test_sweeping_removes_a_link_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.pt").write_text("mine")
    (tmp_path / "root").mkdir()
    link = tmp_path / "root" / f".tmp-{os.getpid()}-x"
    link.symlink_to(tmp_path / "outside")
    prepare(tmp_path / "root")
    assert not link.is_symlink()
    assert (tmp_path / "outside" / "mine.pt").read_text() == "mine"
