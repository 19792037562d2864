"""How messages name a program: by its name if that works, by its path otherwise."""

import os
import sys

import pytest

from rl_training.system.programs import program


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A Python with a program beside it, in a folder that is not on PATH."""
    folder = tmp_path / "its own"
    folder.mkdir()
    for name in ("python", "mlflow"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


def test_program_off_the_path_is_named_by_its_path_quoted(installed):
    assert program("mlflow") == f"'{installed}/mlflow'"


def test_program_on_the_path_is_named_by_its_name(installed, monkeypatch):
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{installed}")
    assert program("mlflow") == "mlflow"


def test_another_one_of_that_name_on_the_path_is_not_meant(installed, tmp_path):
    (tmp_path / "mlflow").write_text("")
    (tmp_path / "mlflow").chmod(0o755)
    assert program("mlflow") == f"'{installed}/mlflow'"


def test_program_that_is_not_beside_python_keeps_its_name(installed):
    assert program("rl-training") == "rl-training"
