"""Checkpoints as logged models: exactly one model each, whatever fails on the way, ranked by their evaluations."""

import json
import shutil
import time
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow_store import (
    BAD,
    GOOD,
    NETWORK,
    WEAK,
    of_another_machine,
    ship_all,
    stored_points,
    tracked_run,
    write_policy,
)

from rl_training import run_layout
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.model_registry import get_or_register
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.runtime.workflows import load_policy
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.version_files import download_version_policy

BY_RETURN = [{"field_name": "metrics.eval/return_mean", "ascending": False}]


def evaluated(run_dir, step, return_mean):
    log = MetricLog(run_dir)
    log.log(step, {"eval/return_mean": return_mean, "eval/return_std": 1.0}, "eval")
    log.close()


def models(client, address):
    """Returns (checkpoint, mean return at its step) of each model of a run, the best first."""
    found = client.search_logged_models(
        [address.experiment_id], f"source_run_id = '{address.run_id}'", order_by=BY_RETURN
    )
    assert all(model.status == "READY" for model in found)
    return [
        (model.tags["checkpoint"], [(metric.step, metric.value) for metric in model.metrics or ()]) for model in found
    ]


def outputs(client, address):
    return sorted(output.step for output in client.get_run(address.run_id).outputs.model_outputs)


@pytest.fixture
def run_dir(home):
    """A run with three checkpoints, of which two were evaluated."""
    run_dir = tracked_run(network=NETWORK)
    for step, gains, return_mean in ((100, BAD, 9.0), (200, GOOD, 500.0), (300, WEAK, None)):
        if return_mean is not None:
            evaluated(run_dir, step, return_mean)
        write_policy(run_dir, step, gains)
    return run_dir


RANKED = [
    ("step_000000000200", [(200, 500.0)]),
    ("step_000000000100", [(100, 9.0)]),
    ("step_000000000300", []),
]


def test_checkpoints_are_ranked_by_their_evaluation(client, run_dir):
    address = ship_all(run_dir).address
    assert models(client, address) == RANKED
    assert outputs(client, address) == [100, 200, 300]
    assert not (run_dir / ".models").exists()
    assert {(key, step, value) for key, step, value, _ in stored_points(client, address.run_id)} == {
        ("eval/return_mean", 100, 9.0),
        ("eval/return_mean", 200, 500.0),
        ("eval/return_std", 100, 1.0),
        ("eval/return_std", 200, 1.0),
    }
    (best,) = client.search_logged_models([address.experiment_id], "metrics.`eval/return_mean` > 400")
    assert best.name == "step 200 of CartPole-v1-ppo-seed0"
    (dataset,) = client.get_run(address.run_id).inputs.dataset_inputs
    shown = [(metric.dataset_name, metric.dataset_digest) for metric in best.metrics]
    assert shown == [(dataset.dataset.name, dataset.dataset.digest)]


def test_a_model_loads_and_acts(client, run_dir):
    address = ship_all(run_dir).address
    best, *_ = client.search_logged_models([address.experiment_id], order_by=BY_RETURN)
    mlflow.set_tracking_uri(embedded_tracking_uri())
    try:
        model = mlflow.pyfunc.load_model(f"models:/{best.model_id}")
    finally:
        mlflow.set_tracking_uri(None)
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    expected = load_policy(run_dir / "checkpoints" / best.tags["checkpoint"]).act(observations)
    assert set(expected) == {0, 1}
    assert list(model.predict(observations)) == expected
    folder = Path(client.get_logged_model(best.model_id).artifact_location.removeprefix("file://"))
    assert sorted(path.name for path in folder.rglob("*") if path.parent.name == "checkpoint") == [
        "config.yaml",
        "manifest.json",
        "policy.pt",
    ]


def test_sending_again_makes_no_second_model(client, run_dir):
    address = ship_all(run_dir).address
    points = stored_points(client, address.run_id)
    (run_dir / run_layout.SHIPPED).unlink()  # as after a kill before it was written
    assert ship_all(run_dir).address == address
    assert models(client, address) == RANKED
    assert outputs(client, address) == [100, 200, 300]
    assert stored_points(client, address.run_id) == points


@pytest.mark.parametrize(
    "request_name", ["create_logged_model", "log_model_artifacts", "finalize_logged_model", "log_outputs", "log_batch"]
)
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_message_makes_no_second_model(client, home, monkeypatch, request_name, arrives):
    run_dir = tracked_run(network=NETWORK)
    evaluated(run_dir, 200, 500.0)
    write_policy(run_dir, 200, GOOD)
    original, lost = getattr(MlflowClient, request_name), []

    def lose(*args, **kwargs):
        is_model = request_name != "log_batch" or any(metric.model_id for metric in kwargs.get("metrics", ()))
        if lost or not is_model:
            return original(*args, **kwargs)
        lost.append(request_name)
        if arrives:
            original(*args, **kwargs)
        raise MlflowException("connection closed without a reply")

    monkeypatch.setattr(MlflowClient, request_name, lose)
    shipment = Shipment(run_dir, embedded_tracking_uri())
    address = shipment.open()
    failures, more = 0, True
    while more:
        try:
            more = shipment.ship()
        except MlflowException:
            failures += 1
            shutil.rmtree(run_dir / "checkpoints")  # training has pruned them meanwhile
    assert lost == [request_name]
    # The outcome of a request that creates something is found out at once.
    assert failures == int(not (arrives and request_name in ("create_logged_model", "log_outputs")))
    assert models(client, address) == RANKED[:1]
    assert outputs(client, address) == [200]


def test_of_two_made_at_the_same_time_the_older_stays(client, run_dir, monkeypatch):
    create = MlflowClient.create_logged_model
    others = []

    def create_twice(self, *args, **kwargs):
        others.append(create(self, *args, **kwargs).model_id)
        return create(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "create_logged_model", create_twice)
    address = ship_all(run_dir).address
    assert models(client, address) == RANKED
    found = client.search_logged_models([address.experiment_id])
    assert len(others) == len({model.model_id for model in found} & set(others)) == 3


def test_a_checkpoint_that_is_replaced_leaves_one_model(client, home):
    run_dir = tracked_run(network=NETWORK)
    write_policy(run_dir, 100, BAD)  # in the middle of its step's update
    address = ship_all(run_dir).address
    evaluated(run_dir, 100, 43.0)
    write_policy(run_dir, 100, WEAK)
    ship_all(run_dir)
    assert models(client, address) == [("step_000000000100", [(100, 43.0)])]

    checkpoint = open_checkpoint(run_dir / "checkpoints" / "step_000000000100")
    config = config_of_checkpoint(checkpoint)
    version, _ = get_or_register(client, embedded_tracking_uri(), "kept", checkpoint, config, address.run_id)
    (model,) = client.search_logged_models([address.experiment_id])  # the version is made of the model that was there
    assert version.source == model.artifact_location
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "kept", "version": 1}]
    write_policy(run_dir, 100, GOOD)
    ship_all(run_dir)
    assert len(models(client, address)) == 2  # what is registered is not taken away


def test_a_registered_model_stays_whose_version_is_not_named_on_it(client, home, monkeypatch):
    run_dir = tracked_run(network=NETWORK)
    checkpoint = write_policy(run_dir, 100, BAD)
    address = ship_all(run_dir).address
    config, uri = config_of_checkpoint(checkpoint), embedded_tracking_uri()
    monkeypatch.setattr("rl_training.promotion.model_registry.link_version", lambda *_: None)  # killed right before
    version, _ = get_or_register(client, uri, "kept", checkpoint, config, address.run_id)
    (model,) = client.search_logged_models([address.experiment_id])
    assert "mlflow.modelVersions" not in model.tags
    write_policy(run_dir, 100, WEAK)
    ship_all(run_dir)
    write_policy(run_dir, 100, GOOD)
    ship_all(run_dir)
    left = {left.artifact_location for left in client.search_logged_models([address.experiment_id])}
    assert len(left) == 2  # the registered one and the last
    assert version.source in left
    assert download_version_policy(client, uri, version).policy_sha256 == checkpoint.policy_sha256


def test_an_evaluation_that_came_later_ranks_no_checkpoint(client, home, monkeypatch):
    run_dir = tracked_run(network=NETWORK)
    write_policy(run_dir, 100, BAD)  # in the middle of its step's update, as a signal came
    monkeypatch.setattr("rl_training.tracking.metric_log._get_time", lambda: time.time() + 60)
    evaluated(run_dir, 100, 43.0)  # after the rest of the update
    address = ship_all(run_dir).address
    assert models(client, address) == [("step_000000000100", [])]


def test_a_run_that_resumes_elsewhere_has_its_checkpoints_ranked(client, run_dir, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rl_training.tracking.shipping.shipment.list_queued_models", lambda run_dir: [])  # it died before
        address = ship_all(run_dir).address
    assert models(client, address) == []
    elsewhere = of_another_machine(run_dir, {"network": NETWORK})
    shutil.copytree(run_dir / "checkpoints" / RANKED[0][0], elsewhere / "checkpoints" / RANKED[0][0])
    assert ship_all(elsewhere).address.run_id == address.run_id
    assert models(client, address) == RANKED[:1]


def test_a_checkpoint_without_a_policy_is_reported_and_stops_nothing(client, home, caplog):
    run_dir = tracked_run(network=NETWORK)
    checkpoint = write_policy(run_dir, 100, GOOD)
    (checkpoint.path / "policy.pt").write_bytes(b"weights")
    json_files.write_bytes(run_dir / "artifacts" / "report.md", b"# All is well")
    address = ship_all(run_dir).address
    assert models(client, address) == []
    assert "step_000000000100 is in MLflow without a model" in caplog.text
    assert "report.md" in {entry.path for entry in client.list_artifacts(address.run_id)}
