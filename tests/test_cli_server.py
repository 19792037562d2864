"""`deploy`, `doctor` and `worker` without a Prefect server, or with one that is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from rl_training.cli.app import run

NOWHERE = "http://me:s3cret@127.0.0.1:9/api"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.mark.parametrize("command", ["deploy", "worker"])
def test_without_a_server_both_say_how_to_have_one(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert run([command]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith("error: no Prefect server is set up")
    assert "`prefect server start`" in error


@pytest.mark.parametrize("command", ["deploy", "worker"])
def test_a_server_that_is_away_is_one_line_without_its_password(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        assert run([command]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "http://me:***@127.0.0.1:9/api does not answer" in error


def test_a_file_with_faults_is_refused_before_the_server_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "deployments: [{name: a, entrypoint: rl_training.flows.train.train_flow, work_pool: {name: b}, shedule: 1}]"
    )
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        assert run(["deploy", "--file", str(file)]) == 2
    assert capfd.readouterr().err == (f"error: {file}: deployment a: unknown key shedule; did you mean schedule?\n")


def test_doctor_without_a_server_looks_at_mlflow_and_finds_nothing_wrong(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_LOW_DISK_GB", "0")
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert run(["doctor", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["healthy"] is True
    assert [(one["check"], one["status"]) for one in found["findings"]] == [
        ("prefect", "note"), ("mlflow", "ok"), ("artifacts", "ok"), ("runs", "ok"), ("disk", "ok"),
    ]  # fmt: skip


def test_doctor_names_a_limit_of_the_disk_that_is_no_number_beside_the_rest(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_LOW_DISK_GB", "abc")
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert run(["doctor"]) == 2
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:-1]] == ["ok      mlflow", "ok      artifacts", "ok      runs"]
    assert lines[-1] == ("problem disk: RL_TRAINING_LOW_DISK_GB is 'abc', expected a number of gigabytes such as 5")


def test_doctor_at_a_server_that_is_away_says_so_and_looks_at_the_rest(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_LOW_DISK_GB", "1e9")
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        assert run(["doctor"]) == 2
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("problem prefect: the Prefect server at http://me:***@127.0.0.1:9/api does not answer")
    assert [line.split(":")[0] for line in lines[1:]] == [
        "ok      mlflow", "ok      artifacts", "ok      runs", "problem disk",
    ]  # fmt: skip
