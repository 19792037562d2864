"""Uploading the files of a run to MLflow: everything once, with its own steps and times, whatever fails in between."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow_store import make_run, ship_all, stored_points, tracked_run

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.run_utils import create_training_run
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.mlflow_run import RunDeleted
from rl_training.tracking.mlflow_store import connect
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.metrics_reader import MetricsReader
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.shipping.sync import sync
from rl_training.tracking.shipping.upload_progress import UploadProgress, load_progress

STATUS = {"status": "FINISHED", "stop_reason": "completed", "error": None, "time": 2_000_000_000.0}


def write_points(run_dir, steps, metric="train/policy_loss", event="update"):
    log = MetricLog(run_dir)
    for step in steps:
        log.log(step, {metric: step / 7}, event)
    log.close()


def points_of_file(run_dir, total_timesteps):
    lines = MetricsReader(run_dir / run_layout.METRICS, total_timesteps).read(most=10**9)
    return {(p.key, p.step, p.value, p.timestamp) for line in lines for p in line.points}


def artifacts(client, run_id, path=None):
    return sorted(entry.path for entry in client.list_artifacts(run_id, path))


def test_mlflow_holds_the_thinned_file_and_sending_again_changes_nothing(client):
    run_dir = tracked_run(total_timesteps=100_000)
    write_points(run_dir, range(0, 100_000, 20))  # buckets of 50 steps: 2,000 of 5,000 points
    write_points(run_dir, range(0, 100_000, 10_000), "eval/return_mean", "eval")
    shipment = ship_all(run_dir)
    run_id = shipment.address.run_id
    expected = points_of_file(run_dir, 100_000)
    assert len(expected) == 2_010
    assert stored_points(client, run_id) == expected
    assert (shipment.report().sent, shipment.report().unsent) == (2_010, 0)

    (run_dir / run_layout.SHIPPED).unlink()  # as after a kill between sending and writing the cursor
    again = ship_all(run_dir)
    assert again.address.run_id == run_id
    assert stored_points(client, run_id) == expected
    assert (again.report().sent, again.report().unsent) == (2_010, 0)


def test_sending_continues_where_it_ended(client):
    run_dir = tracked_run(total_timesteps=2_000)
    write_points(run_dir, range(0, 500))
    first = ship_all(run_dir)
    write_points(run_dir, range(500, 900))
    with (run_dir / run_layout.METRICS).open("a") as file:
        file.write('{"event": "update", "step": 900, "ti')  # not yet complete
    assert first.report().unsent == 400
    second = ship_all(run_dir)
    assert (second.report().sent, second.report().unsent) == (900, 0)
    assert stored_points(client, second.address.run_id) == points_of_file(run_dir, 2_000)


def test_a_batch_that_failed_is_sent_again_as_it_was(client):
    run_dir = tracked_run(total_timesteps=5_000)
    write_points(run_dir, range(0, 1_500))
    shipment = Shipment(run_dir, embedded_tracking_uri())
    run_id = shipment.open().run_id
    shipment.ship()
    client.delete_run(run_id)  # points are refused now
    failures = 0
    for _ in range(3):
        with pytest.raises(Exception, match="active"):
            shipment.ship()
        failures += 1
    assert shipment.is_deleted()
    client.restore_run(run_id)
    write_points(run_dir, range(1_500, 1_600))
    while shipment.ship():
        pass
    assert failures == 3
    assert stored_points(client, run_id) == points_of_file(run_dir, 5_000)


def test_a_run_that_resumes_in_another_directory_sends_no_point_twice(client):
    first = tracked_run(total_timesteps=1_000)
    write_points(first, range(0, 300, 10))
    run_id = ship_all(first).address.run_id
    second = tracked_run(total_timesteps=1_000)  # resumed elsewhere from a checkpoint at 200: the same run_uid
    description = json_files.read_json(second / run_layout.TRACKING)
    description["run_uid"] = json_files.read_json(first / run_layout.TRACKING)["run_uid"]
    json_files.write_json(second / run_layout.TRACKING, description)
    write_points(second, range(200, 500, 10))
    assert ship_all(second).address.run_id == run_id
    assert sorted(step for _, step, _, _ in stored_points(client, run_id)) == list(range(0, 500, 10))


def test_run_is_described(client, home):
    run_dir = tracked_run(
        {"prefect.flow_run_id": "abc"},
        env_kwargs={"sutton_barto_reward": True, "note": "z" * 9000},
        seed=3,
        tags={"team": "blue"},
        experiment="described",
    )
    shipment = ship_all(run_dir)
    run = client.get_run(shipment.address.run_id)
    assert run.data.params["env_kwargs.sutton_barto_reward"] == "true"
    assert run.data.params["num_envs"] == "8"
    assert run.data.params["evaluation.episodes"] == "10"
    assert len(run.data.params["env_kwargs.note"]) == 6000
    metadata = json.loads((run_dir / "metadata.json").read_text())
    tags = run.data.tags
    assert tags["run_uid"] == metadata["run_uid"]
    assert (tags["algo"], tags["env_id"], tags["seed"]) == ("ppo", "CartPole-v1", "3")
    assert (tags["team"], tags["prefect.flow_run_id"]) == ("blue", "abc")
    assert tags["version.torch"] == metadata["versions"]["torch"]
    assert "CartPole-v1" in tags["mlflow.note.content"]
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "CartPole-v1"
    assert json.loads(dataset.dataset.source)["env_kwargs"]["sutton_barto_reward"] is True
    assert run.info.run_name == "CartPole-v1-ppo-seed3"
    assert client.get_experiment(shipment.address.experiment_id).name == "described"
    assert run.info.artifact_uri.startswith((home / "artifacts").as_uri())
    assert artifacts(client, run.info.run_id) == ["config.yaml", "metadata.json"]

    ship_all(run_dir)  # as after a resume: the same run, the dataset not twice
    assert len(client.get_run(run.info.run_id).inputs.dataset_inputs) == 1


def test_a_changed_parameter_does_not_stop_anything(client):
    run_dir = tracked_run()
    run_id = ship_all(run_dir).address.run_id
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    description["params"]["run_dir"] = "/elsewhere"
    description["params"]["added"] = "1"
    json_files.write_json(run_dir / run_layout.TRACKING, description)
    ship_all(run_dir)
    run = client.get_run(run_id)
    assert (run.data.params["run_dir"], run.data.params["added"]) == ("null", "1")
    assert json.loads(run.data.tags["params_changed"]) == {"run_dir": "/elsewhere"}


def make_checkpoint(run_dir, name, policy=b"weights", manifest='{"format_version": 1}'):
    path = run_dir / "checkpoints" / name
    path.mkdir(parents=True)
    (path / "policy.pt").write_bytes(policy)
    (path / "manifest.json").write_text(manifest)
    return path


def test_finished_checkpoints_become_artifacts(client):
    run_dir = tracked_run()
    make_checkpoint(run_dir, "step_000000000100")
    half = make_checkpoint(run_dir, "step_000000000200")
    (half / "manifest.json").unlink()
    make_checkpoint(run_dir, ".tmp-17-step_000000000300")
    make_checkpoint(run_dir, "damaged-step_000000000050")
    run_id = ship_all(run_dir).address.run_id
    assert artifacts(client, run_id, "checkpoints") == ["checkpoints/step_000000000100"]
    assert artifacts(client, run_id, "checkpoints/step_000000000100") == [
        "checkpoints/step_000000000100/manifest.json",
        "checkpoints/step_000000000100/policy.pt",
    ]
    (half / "manifest.json").write_text("{}")  # now it is complete
    shutil.rmtree(run_dir / "checkpoints" / "step_000000000100")  # pruned here, kept there
    ship_all(run_dir)
    assert len(artifacts(client, run_id, "checkpoints")) == 2
    assert not (run_dir / ".shipping").exists()


def test_a_checkpoint_is_never_in_mlflow_without_the_points_before_it(client, monkeypatch):
    run_dir = tracked_run(total_timesteps=2_000)
    shipment = Shipment(run_dir, embedded_tracking_uri())
    run_id = shipment.open().run_id
    shipment.ship()
    send_points = Shipment._ship_points

    def train_meanwhile(self, name):
        more = send_points(self, name)
        if not (run_dir / "checkpoints" / "step_000000000500").exists():
            write_points(run_dir, range(500))
            make_checkpoint(run_dir, "step_000000000500")
        return more

    monkeypatch.setattr(Shipment, "_ship_points", train_meanwhile)
    while not artifacts(client, run_id, "checkpoints"):
        shipment.ship()
    assert shipment.report().sent == 500


def test_the_manifest_goes_last(client):
    run_dir = tracked_run()
    checkpoint = make_checkpoint(run_dir, "step_000000000100")
    (checkpoint / "zz.pt").mkdir()  # can't be linked nor copied: sending fails before the manifest's turn
    with pytest.raises(OSError, match=r"zz\.pt"):
        ship_all(run_dir)
    run_id = json_files.read_json(run_dir / run_layout.MLFLOW)["run_id"]
    assert artifacts(client, run_id) == []


def test_evaluations_and_other_artifacts_are_sent_and_updated(client):
    run_dir = tracked_run()
    json_files.write_bytes(run_dir / "artifacts" / "evaluations" / "heldout.json", b"[1]")
    json_files.write_bytes(run_dir / "checkpoints" / "best.json", b"{}")
    run_id = ship_all(run_dir).address.run_id
    assert artifacts(client, run_id) == ["checkpoints", "config.yaml", "evaluations", "metadata.json"]
    json_files.write_bytes(run_dir / "artifacts" / "evaluations" / "heldout.json", b"[1, 2]")
    ship_all(run_dir)
    assert Path(client.download_artifacts(run_id, "evaluations/heldout.json")).read_text() == "[1, 2]"


def test_the_learning_curve_is_drawn(client):
    run_dir = tracked_run()
    write_points(run_dir, range(0, 1000, 100), "rollout/episode_return_mean")
    write_points(run_dir, range(0, 1000, 500), "eval/return_mean", "eval")
    run_id = ship_all(run_dir, lambda: STATUS).address.run_id
    assert "learning_curve.png" in artifacts(client, run_id)
    assert (run_dir / "artifacts" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_status_is_as_it_ended_and_running_again_after_a_resume(client, status):
    run_dir = tracked_run()
    shipment = ship_all(run_dir)
    run_id = shipment.address.run_id
    assert client.get_run(run_id).info.status == "RUNNING"
    ended = {**STATUS, "status": status, "error": None if status == "FINISHED" else "NumericError: loss is NaN"}
    while shipment.ship(lambda: ended):
        pass
    run = client.get_run(run_id)
    assert (run.info.status, run.info.end_time) == (status, 2_000_000_000_000)
    assert run.data.tags["stop_reason"] == "completed"
    assert run.data.tags.get("error") == ended["error"]
    ship_all(run_dir)  # it continues
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert "error" not in run.data.tags


def test_a_resume_that_was_not_exact_is_marked(client):
    run_dir = tracked_run()
    log = MetricLog(run_dir)
    log.log(10, {"train/loss": 1.0}, "update")
    log.close()
    log.log(10, {"train/loss": 2.0}, "update")
    run_id = ship_all(run_dir).address.run_id
    assert json.loads(client.get_run(run_id).data.tags["resume.differences"]) == {"step": 10, "train/loss": [1.0, 2.0]}
    assert {(step, value) for _, step, value, _ in stored_points(client, run_id)} == {(10, 1.0)}


def test_a_lost_reply_makes_no_second_run(client, monkeypatch):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    create_run = MlflowClient.create_run

    def lose_reply(*args, **kwargs):
        create_run(*args, **kwargs)
        raise MlflowException("connection closed without a reply")

    monkeypatch.setattr(MlflowClient, "create_run", lose_reply)
    run_dir = tracked_run()
    address = Shipment(run_dir, embedded_tracking_uri()).open()
    uid = json_files.read_json(run_dir / run_layout.TRACKING)["run_uid"]
    runs = client.search_runs([address.experiment_id], f"tags.run_uid = '{uid}'")
    assert [run.info.run_id for run in runs] == [address.run_id]
    # Were a second one made after all, by a request that was late, the older one stays.
    create_run(client, address.experiment_id, tags={"run_uid": uid})
    (run_dir / run_layout.MLFLOW).unlink()
    assert Shipment(run_dir, embedded_tracking_uri()).open().run_id == address.run_id
    assert len(client.search_runs([address.experiment_id], f"tags.run_uid = '{uid}'")) == 1


def test_a_deleted_run_is_reported_and_sent_again_on_request(client):
    run_dir = tracked_run(total_timesteps=1_000)
    write_points(run_dir, range(0, 100))
    old = ship_all(run_dir, lambda: STATUS).address.run_id
    client.delete_run(old)
    json_files.write_json(run_dir / run_layout.STATUS, STATUS)
    with pytest.raises(RunDeleted, match=f"run {old} was deleted in MLflow.*`rl-training sync {run_dir} --new-run`"):
        sync(run_dir)
    report = sync(run_dir, new_run=True)
    assert report.run_id != old
    assert (report.sent, report.unsent, report.message) == (100, 0, "")
    assert stored_points(client, report.run_id) == points_of_file(run_dir, 1_000)
    assert client.get_run(report.run_id).info.status == "FINISHED"
    assert sync(run_dir) == report  # nothing to do


def test_sync_of_a_killed_run_marks_it_and_of_a_living_one_does_not(client):
    run_dir = tracked_run()
    run_id = sync(run_dir).run_id  # this process is alive, and so is the run
    assert client.get_run(run_id).info.status == "RUNNING"
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    description["process"]["created"] += 1000.0  # another process had this id
    json_files.write_json(run_dir / run_layout.TRACKING, description)
    sync(run_dir)
    assert client.get_run(run_id).info.status == "KILLED"
    assert json_files.read_json(run_dir / run_layout.STATUS)["stop_reason"] == "killed"


def test_sync_refuses_what_is_no_tracked_run(home, tmp_path):
    with pytest.raises(TrackingError, match="holds no run; expected a run's directory"):
        sync(tmp_path)
    run_dir, _ = make_run()
    with pytest.raises(TrackingError, match=f"{run_dir} was trained untracked"):
        sync(run_dir)


def test_sync_goes_where_the_run_is(home, client, tmp_path, monkeypatch):
    run_dir = tracked_run()
    run_id = sync(run_dir).run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert sync(run_dir).run_id == run_id
    shutil.copy(home / "mlflow.db", tmp_path / "other.db")
    other = connect(f"sqlite:///{tmp_path}/other.db")
    other.delete_run(run_id)
    fresh = sync(run_dir, tracking_uri=f"sqlite:///{tmp_path}/other.db")  # asked for, so it goes there
    assert fresh.run_id != run_id
    assert other.get_run(fresh.run_id).info.artifact_uri.startswith("file:")


def test_a_fork_and_its_origin_name_each_other(client):
    origin = ship_all(tracked_run()).address
    origin_uid = client.get_run(origin.run_id).data.tags["run_uid"]
    config = config_from_mapping(
        {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 200_000, "experiment": "b"}
    )
    difference = "total_timesteps: 100000 -> 200000 (may grow)"
    forked_from = {"run_uid": origin_uid, "num_timesteps": 100_000, "policy_sha256": "0", "differences": [difference]}
    forked_from["lineage"] = [{"trial": 3, "run_uid": origin_uid, "num_timesteps": 100_000, "params": {}}]
    run = create_training_run(config, forked_from=forked_from)
    json_files.write_json(run.run_dir / run_layout.TRACKING, describe_run(run.run_dir, config, {}))
    fork = ship_all(run.run_dir).address
    tags = client.get_run(fork.run_id).data.tags
    assert tags["forked_from.run_id"] == origin.run_id
    assert tags["forked_from.num_timesteps"] == "100000"
    assert tags["forked_from.differences"] == difference
    assert json.loads(tags["forked_from.lineage"]) == forked_from["lineage"]
    assert client.get_run(origin.run_id).data.tags[f"fork.{run.run_uid}"] == fork.run_id


def test_a_cursor_names_no_file_but_the_runs_metrics(home, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("a line\n")
    run_dir = tracked_run()
    saved = {"tracking_uri": "sqlite:///x.db", "run_id": "0" * 32, "points": 1, "checkpoints": [], "artifacts": {}}
    for name in (str(outside), f"../{outside.name}", "x" * 300):
        json_files.write_json(run_dir / run_layout.SHIPPED, {**saved, "offsets": {name: 7}})
        assert load_progress(run_dir, "sqlite:///x.db", "0" * 32) == UploadProgress("sqlite:///x.db", "0" * 32)
