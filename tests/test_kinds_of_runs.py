"""Runs in MLflow that train nothing, such as the page of a sweep, are no source of checkpoints and are in no list."""

import pytest
from mlflow_store import GOOD, run_with_policy

from rl_training.api.run_listing import list_runs
from rl_training.errors import UserError
from rl_training.promotion.candidates import find_candidate
from rl_training.serving.mlflow_pages import find_page
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.mlflow_names import COMPARISON, KIND, SWEEP, WINNER
from rl_training.tracking.mlflow_run import RUN_UID

UID = "5" * 32


def create_run(client, kind, **tags):
    return client.create_run("0", tags={KIND: kind, RUN_UID: UID} | tags).info.run_id


def as_id(run_id):
    return run_id


def as_uid(run_id):
    return UID


def as_address(run_id):
    return f"runs:/{run_id}"


def as_checkpoint(run_id):
    return f"runs:/{run_id}/checkpoints/step_100"


@pytest.mark.parametrize("find", [download_checkpoint, find_candidate])
@pytest.mark.parametrize("name", [as_id, as_uid, as_address, as_checkpoint])
def test_a_sweep_is_no_source_and_the_message_names_its_winner(client, find, name):
    run_id = create_run(client, SWEEP, **{WINNER: "a" * 32})
    with pytest.raises(UserError) as refused:
        find(name(run_id))
    assert str(refused.value) == (f"run {run_id} is a sweep; its winner is run {'a' * 32}; expected a training run")


@pytest.mark.parametrize(
    ("kind", "what"),
    [(SWEEP, "a sweep; it has no winner yet"), (COMPARISON, "a comparison run"), ("x\ny", "a x y run")],
)
def test_a_run_that_trains_nothing_is_no_source(client, kind, what):
    run_id = create_run(client, kind)
    with pytest.raises(UserError) as refused:
        download_checkpoint(run_id)
    assert str(refused.value) == f"run {run_id} is {what}; expected a training run"


def test_lists_of_runs_have_the_runs_that_train_something(client):
    _, run_id = run_with_policy(GOOD)
    create_run(client, SWEEP)
    create_run(client, COMPARISON)
    assert [run.run_id for run in list_runs(mlflow=True)] == [run_id]


def test_the_page_of_a_sweep_opens_by_either_id(client):
    run_id = create_run(client, SWEEP)
    for source in (run_id, UID):
        assert find_page(source, embedded_tracking_uri()).startswith(f"#/experiments/0/runs/{run_id}")
