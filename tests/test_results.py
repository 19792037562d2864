"""Results as data frames: `rl_training.results`."""

import shutil

import pytest
from finished_runs import finished_run, ship

import rl_training
from rl_training import results
from rl_training.errors import CheckpointError, UserError
from rl_training.runs.metadata import read_metadata
from rl_training.tracking.mlflow_names import PHASE, SWEEP_UID, TRIAL

CURVE = {200: 1.0, 400: 3.0}
POINTS = [
    (200, "eval/return_mean", 1.0),
    (200, "time/steps_per_second", 100.0),
    (400, "eval/return_mean", 3.0),
    (400, "time/steps_per_second", 100.0),
    (1_000, "heldout/return_mean", 9.0),
    (1_000, "heldout/success_rate", 0.5),
]


def list_points(frame):
    assert list(frame.columns) == ["step", "name", "value", "time"]
    assert str(frame["time"].dt.tz) == "UTC"
    return list(frame[["step", "name", "value"]].itertuples(index=False, name=None))


def test_the_metrics_of_a_run_are_rows():
    run_dir = finished_run(9.0, curve=CURVE)
    assert list_points(results.metrics(run_dir)) == POINTS
    assert list_points(results.metrics(read_metadata(run_dir)["run_uid"])) == POINTS


def test_the_metrics_come_from_mlflow_if_the_directory_is_gone():
    run_dir = finished_run(9.0, curve=CURVE)
    run_id = ship(run_dir)
    assert list_points(results.metrics(run_id)) == POINTS
    shutil.rmtree(run_dir)
    assert list_points(results.metrics(f"runs:/{run_id}")) == POINTS


def test_the_metrics_of_no_run_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        results.metrics(tmp_path)
    with pytest.raises(UserError, match="neither MLflow nor the home of rl_training has such a run"):
        results.metrics("6" * 32)
    with pytest.raises(UserError, match="is a registered version; expected a run"):
        results.metrics("models:/x/1")


def test_a_link_in_a_received_directory_is_not_followed(tmp_path):
    run_dir = finished_run(9.0)
    (tmp_path / "secret").write_text('{"event": "eval", "step": 1, "time": 1.0, "metrics": {"x": 1.0}}\n')
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="is a link"):
        results.metrics(run_dir)


def test_the_runs_of_the_home_and_of_an_experiment_are_rows():
    run_dir = finished_run(9.0, curve=CURVE, seed=4, gamma=0.5, experiment="in a frame")
    uid = read_metadata(run_dir)["run_uid"]
    run_id = ship(run_dir)
    here = results.runs().set_index("run_uid").loc[uid]
    there = results.runs("in a frame").set_index("run_uid").loc[uid]
    for row in (here, there):
        assert (row["run_id"], row["run_dir"], row["state"]) == (run_id, str(run_dir), "finished")
        assert (row["seed"], row["gamma"], row["evaluation.final_episodes"], row["algo"]) == (4, 0.5, 100, "ppo")
        assert (row["heldout/return_mean"], row["eval/return_mean"]) == (9.0, 3.0)
    assert here["started"].replace(microsecond=0) == there["started"].replace(microsecond=0)


def test_the_runs_of_a_sweep_say_which_sweep_trial_and_phase_they_belong_to():
    trial = finished_run(9.0, experiment="a sweep in a frame")
    ship(trial, {SWEEP_UID: "5" * 32, TRIAL: "t0003-s1", PHASE: "search"})
    ship(own := finished_run(8.0, experiment="a sweep in a frame"))
    for frame in (results.runs(), results.runs("a sweep in a frame")):
        place = frame.set_index("run_dir")[["sweep", "trial", "phase"]]
        assert list(place.loc[str(trial)]) == ["5" * 32, "t0003-s1", "search"]
        assert place.loc[str(own)].isna().all()


def test_compare_is_offered_with_the_frames():
    assert results.compare is rl_training.compare
