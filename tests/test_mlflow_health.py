"""What `rl-training doctor` reports about MLflow, and which runs it ends."""

import shutil
import time
from email.utils import formatdate

import pytest
from mlflow_store import ship_all, tracked_run

from rl_training import run_layout
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_health import check_clock, check_mlflow


def found(check: str, **options) -> list[str]:
    options.setdefault("fix", False)
    return [finding.line() for finding in check_mlflow(**options) if finding.check == check]


@pytest.fixture
def run(client):
    """A run that is RUNNING in MLflow, of a process that lives; its directory and id."""
    run_dir = tracked_run()
    return run_dir, ship_all(run_dir).address.run_id


def lose_process(run_dir):
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    description["process"]["created"] = 1.0  # another process has its number now
    json_files.write_json(run_dir / run_layout.TRACKING, description)


def test_a_working_store_is_reported_and_its_round_trip_leaves_one_run(client, run):
    for _ in range(2):
        assert found("artifacts") == ["ok      artifacts: a file was sent and came back"]
    (experiment,) = client.search_experiments(filter_string="name = 'rl_training_doctor'")
    (trip,) = client.search_runs([experiment.experiment_id])
    assert trip.info.status == "FINISHED"
    assert found("runs") == ["ok      runs: 1 RUNNING in MLflow, none of them known to be dead"]


@pytest.mark.parametrize("how", ["killed", "directory removed", "flow run ended"])
def test_a_run_that_nothing_will_end_is_named_and_ended_when_asked(client, run, how):
    run_dir, run_id = run
    why = "its training process no longer exists"
    if how == "killed":
        lose_process(run_dir)
    elif how == "directory removed":
        shutil.rmtree(run_dir)
        why = f"its directory {run_dir} no longer exists"
    else:
        client.set_tag(run_id, "host", "another-machine")
        client.set_tag(run_id, "prefect.flow_run_id", "dead")
        why = "its flow run dead has ended"
    assert found("runs", gone={"dead": True}.__getitem__) == [
        f"problem runs: {run_id} is RUNNING in MLflow, and {why}; `rl-training doctor --fix` records its end there"
    ]
    assert client.get_run(run_id).info.status == "RUNNING"
    assert found("runs", fix=True, gone={"dead": True}.__getitem__) == [
        f"fixed   runs: {run_id} is RUNNING in MLflow, and {why}: set to KILLED; `rl-training resume {run_id}` "
        f"continues it"
    ]
    assert client.get_run(run_id).info.status == "KILLED"
    assert found("runs") == ["ok      runs: 0 RUNNING in MLflow, none of them known to be dead"]


def test_a_run_that_has_ended_is_recorded_as_it_has_ended(client, run):
    run_dir, run_id = run
    lose_process(run_dir)
    json_files.write_status(run_dir, "FINISHED", "completed", None)
    (line,) = found("runs", fix=True)
    assert line.endswith(f": set to FINISHED; `rl-training sync {run_dir}` sends what is not there yet")
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_of_another_machine_is_left_alone_while_its_flow_run_continues(client, run):
    _, run_id = run
    client.set_tag(run_id, "host", "another-machine")
    assert found("runs", fix=True)[0].startswith("ok")
    client.set_tag(run_id, "prefect.flow_run_id", "alive")
    assert found("runs", fix=True, gone={"alive": False}.__getitem__)[0].startswith("ok")
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_server_that_is_away_is_the_only_finding(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (finding,) = check_mlflow(fix=False)
    assert (finding.check, finding.status) == ("mlflow", "problem")
    assert finding.text.startswith("http://127.0.0.1:9 does not answer: connection refused")
    assert "MLFLOW_TRACKING_URI" in finding.advice


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (0, "ok      clock: the server has the time of this machine"),
        (4, "ok      clock: the server has the time of this machine"),
        (
            3_600,
            "problem clock: the server is 3600 s ahead of this machine; synchronize both clocks with NTP; schedules",
        ),
        (-60, "problem clock: the server is 60 s behind this machine; synchronize both clocks with NTP; schedules"),
    ],
)
def test_clocks_are_compared(monkeypatch, seconds, line):
    now = 1_800_000_000.5
    monkeypatch.setattr(time, "time", lambda: now)
    assert check_clock("the server", formatdate(now + seconds, usegmt=True)).line().startswith(line)


def test_a_server_without_a_date_is_no_problem():
    assert check_clock("the server", None).status == "note"
