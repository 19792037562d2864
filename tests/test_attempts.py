"""Only the newest training process of a run may write to it, on whatever machine the earlier ones are."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from mlflow_store import GOOD, make_run, of_another_machine, ship_all, stored_points, tracked_run, write_policy

from rl_training import run_layout
from rl_training.api.held_out_evaluation import evaluate_held_out
from rl_training.errors import NoProgress, RunTakenOver
from rl_training.flows.tasks import promote
from rl_training.runs.locks import RunLock, record_takeover
from rl_training.tracking import json_files
from rl_training.tracking.attempts import (
    Attempt,
    AttemptSuperseded,
    begin_attempt,
    find_run_by_tag,
    get_attempts,
    require_newest_attempt,
    require_progress,
)
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.session import TrackingSession
from rl_training.tracking.shipping.sync import sync

FIRST = Attempt(from_step=0, host="a", pid=1, created=100.0)
SECOND = Attempt(from_step=500, host="b", pid=1, created=90.0)  # another machine's clock


def log(run_dir, steps):
    metrics = MetricLog(run_dir)
    for step in steps:
        metrics.log(step, {"train/loss": step / 3}, "update")
    metrics.close()


def test_the_newest_attempt_has_the_run_and_is_counted(client):
    run_id = ship_all(tracked_run()).address.run_id
    for number, attempt in ((2, FIRST), (3, SECOND), (3, SECOND)):  # asking again changes nothing
        begin_attempt(client, client.get_run(run_id), attempt, training=True)
        require_newest_attempt(client, run_id, attempt)
        assert client.get_run(run_id).data.tags["attempt"] == str(number)
    assert get_attempts(client.get_run(run_id))[1:] == [FIRST, SECOND]
    elsewhere = rf"run {run_id} was resumed from step 500 by process 1 on b; nothing is sent from here"
    with pytest.raises(AttemptSuperseded, match=elsewhere):
        require_newest_attempt(client, run_id, FIRST)
    with pytest.raises(AttemptSuperseded):  # it had its time
        begin_attempt(client, client.get_run(run_id), FIRST, training=True)


def test_of_what_has_ended_the_one_that_began_last_is_the_newest(client):
    run_id = ship_all(tracked_run()).address.run_id
    now = get_attempts(client.get_run(run_id))[-1]
    with pytest.raises(AttemptSuperseded):
        begin_attempt(client, client.get_run(run_id), FIRST, training=False)
    begin_attempt(client, client.get_run(run_id), replace(FIRST, created=now.created + 1), training=False)


def test_the_first_and_the_newest_attempts_are_kept_by_name(client):
    run_id = ship_all(tracked_run()).address.run_id
    (first,) = get_attempts(client.get_run(run_id))
    for step in range(30):
        begin_attempt(client, client.get_run(run_id), replace(FIRST, from_step=step), training=True)
    run = client.get_run(run_id)
    assert run.data.tags["attempt"] == "31"
    assert get_attempts(run)[0] == first
    assert [attempt.from_step for attempt in get_attempts(run)[1:]] == list(range(11, 30))


def test_three_attempts_at_one_step_are_enough():
    def attempts(*steps):
        return [replace(FIRST, from_step=step) for step in steps]

    require_progress(attempts(0, 0, 500, 500), 500)
    require_progress(attempts(500, 500, 500), 501)
    require_progress([], 0)
    with pytest.raises(NoProgress, match="the last 3 attempts at this run began at step 500 and saved no new"):
        require_progress(attempts(0, 500, 500, 500), 500)


def test_a_run_is_found_by_its_tag(home):
    run_dir = tracked_run({"prefect.flow_run_id": "abc"})
    run = find_run_by_tag("prefect.flow_run_id", "abc")
    assert run is None
    run_id = ship_all(run_dir).address.run_id
    assert find_run_by_tag("prefect.flow_run_id", "abc").info.run_id == run_id


def test_a_process_that_was_thought_dead_sends_nothing_after_the_run_resumed_elsewhere(client):
    settings = {"total_timesteps": 1_000}
    run_dir = tracked_run(**settings)
    log(run_dir, range(0, 300, 10))
    shipment = ship_all(run_dir)
    run_id = shipment.address.run_id
    elsewhere = of_another_machine(run_dir, settings)
    log(elsewhere, range(200, 500, 10))
    assert ship_all(elsewhere).address.run_id == run_id
    log(run_dir, range(300, 400, 10))
    with pytest.raises(AttemptSuperseded):
        shipment.ship()
    with pytest.raises(AttemptSuperseded):
        shipment.ship(lambda: {"status": "FAILED", "time": 1.0})
    json_files.write_json(run_dir / run_layout.STATUS, {"status": "FAILED", "time": 1.0})
    report = sync(run_dir)
    assert report.unsent == 10
    assert "was resumed from step 200 by process" in report.message
    assert client.get_run(run_id).info.status == "RUNNING"
    assert sorted(step for _, step, _, _ in stored_points(client, run_id)) == list(range(0, 500, 10))


def test_nothing_is_logged_to_a_run_that_was_taken_over(tmp_path):
    metrics = MetricLog(tmp_path)
    with RunLock(tmp_path):
        metrics.log(1, {"a": 1.0}, "update")
        record_takeover(tmp_path, "another")
        with pytest.raises(RunTakenOver):
            metrics.log(2, {"a": 1.0}, "update")
    metrics.close()
    assert len((tmp_path / run_layout.METRICS).read_text().splitlines()) == 1


def test_a_process_that_wakes_up_after_training_neither_evaluates_nor_reports_nor_promotes():
    run_dir, config = make_run(evaluation={"final_episodes": 10})
    checkpoint = write_policy(run_dir, 100, GOOD)
    log = MetricLog(run_dir)
    session = TrackingSession(run_dir, {"run_uid": "a", "total_timesteps": 100}, tracking_uri=None)
    run = SimpleNamespace(run_dir=run_dir, config=config, session=session)
    with RunLock(run_dir):
        evaluate_held_out(checkpoint, config, run_dir, log)
        session.log_artifact("report.md", "ours")
    record_takeover(run_dir, "another")
    files = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(RunTakenOver):
        evaluate_held_out(checkpoint, config, run_dir, log)  # its metrics are equal, so the log writes none
    with pytest.raises(RunTakenOver):
        session.log_artifact("report.md", "theirs")
    with pytest.raises(RunTakenOver):
        promote.fn(run, str(checkpoint.path))
    log.close()
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == files
