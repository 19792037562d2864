"""Candidates for promotion: which checkpoint of a run is taken, which settings may differ, and what is refused."""

import json
import shutil
from dataclasses import replace

import pytest
from mlflow_store import BAD, GOOD, NETWORK, WEAK, make_run, run_with_policies, run_with_policy, ship_all, write_policy

from rl_training.api.promotion import promote_candidate
from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.promotion.candidates import find_candidate
from rl_training.promotion.model_registry import get_champion
from rl_training.system.paths import embedded_tracking_uri

MODEL = "CartPole-v1"
RULES = ["promotion.episodes=20"]


def steps_offered(source):
    candidate = find_candidate(source)
    return candidate.checkpoint.num_timesteps, candidate.run_id


def test_of_a_run_it_is_the_best_checkpoint_and_not_the_newest(client):
    (first, best, newest), run_id = run_with_policies((BAD, 9.0), (GOOD, 500.0), (WEAK, 43.0))
    run_dir = best.path.parent.parent
    for source in (run_id, f"runs:/{run_id}", f"runs:/{run_id}/checkpoints", run_dir, str(run_dir / "checkpoints")):
        assert steps_offered(source) == (200, run_id)
    assert steps_offered(f"runs:/{run_id}/checkpoints/{first.path.name}") == (100, run_id)
    assert steps_offered(newest.path) == (300, run_id)
    shutil.rmtree(run_dir)  # from here on MLflow alone has them
    assert steps_offered(run_id) == (200, run_id)


def test_a_directory_that_is_ahead_of_mlflow_has_the_best(client):
    (first,), run_id = run_with_policies((BAD, 9.0))
    run_dir = first.path.parent.parent
    write_policy(run_dir, 200, GOOD)
    record = {"checkpoint": "step_000000000200", "num_timesteps": 200, "return_mean": 500.0}
    (run_dir / "checkpoints" / "best.json").write_text(json.dumps(record))
    assert steps_offered(run_id) == (200, run_id)
    record = {
        "checkpoint": "step_000000000200",
        "num_timesteps": 200,
        "return_mean": 8.0,
    }  # stale: MLflow has a better one
    (run_dir / "checkpoints" / "best.json").write_text(json.dumps(record))
    assert steps_offered(run_id) == (100, run_id)


def test_of_a_run_that_was_never_evaluated_it_is_the_newest(client):
    first, run_id = run_with_policy(BAD)
    write_policy(first.path.parent.parent, 200, WEAK)
    ship_all(first.path.parent.parent)
    assert steps_offered(run_id) == (200, run_id)
    assert steps_offered(first.path.parent.parent) == (200, run_id)


def test_a_registered_version_stays_what_it_is(client):
    _, run_id = run_with_policies((BAD, 9.0))
    first = promote_candidate(run_id, [*RULES, "promotion.floor=100"])
    assert (first.verdict.kind, first.version, first.alias) == ("REJECT", "1", None)
    result = promote_candidate(f"models:/{MODEL}/1", [*RULES, "promotion.floor=null"])  # the floor was too high
    assert (result.model, result.version, result.alias, result.run_id) == (MODEL, "1", "champion", run_id)
    assert promote_candidate(f"models:/{MODEL}@champion", RULES) == replace(result, moved=False)


def test_a_version_of_a_model_of_another_name_is_offered_there(client):
    _, run_id = run_with_policies((BAD, 9.0))
    assert promote_candidate(run_id, [*RULES, "promotion.model=staging"]).model == "staging"
    assert promote_candidate("models:/staging/1", RULES).model == "staging"  # not the environment's
    result = promote_candidate("models:/staging@champion", {"promotion": {"episodes": 20, "model": "production"}})
    assert (result.model, result.version, result.alias) == ("production", "1", "champion")
    assert client.get_model_version("production", "1").tags["checkpoint"] == "step_000000000100"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=3", "--set seed: can't be changed here; a promotion may set promotion.* and evaluation.*"),
        ("promotion.flor=3", "--set promotion.flor: unknown key; did you mean floor?"),
        ("promotion.episodes=3", "promotion.episodes: got 3, expected greater than or equal to 20"),
        ("promotion.model=a/b", "promotion.model: got a/b, expected at most 200 letters"),
    ],
)
def test_what_an_offer_may_not_set(client, override, message):
    _, run_id = run_with_policies((BAD, 9.0))
    with pytest.raises(ConfigError) as error:
        promote_candidate(run_id, [override])
    assert message in str(error.value)
    assert client.search_registered_models() == []


def test_what_is_no_candidate(client, tmp_path):
    with pytest.raises(UserError, match="'gibberish' is no checkpoint; expected a checkpoint's or run's directory"):
        promote_candidate("gibberish")
    with pytest.raises(UserError, match="has no such thing"):
        promote_candidate("0" * 32)
    with pytest.raises(UserError, match="has no such thing"):
        promote_candidate(f"models:/{MODEL}@champion")
    with pytest.raises(CheckpointError, match="holds no run and no checkpoint"):
        promote_candidate(tmp_path)
    run_dir, _ = make_run(network=NETWORK)
    write_policy(run_dir, 100, BAD)
    with pytest.raises(UserError, match=r"does not have run [0-9a-f]+ of .*; send it with `rl-training sync RUN_DIR`"):
        promote_candidate(run_dir)


def test_a_version_that_others_registered_is_refused(client):
    client.create_registered_model("theirs")
    client.create_model_version("theirs", source=f"file://{embedded_tracking_uri()}/nothing")
    with pytest.raises(CheckpointError, match="version 1 of theirs has no files that are ours"):
        promote_candidate("models:/theirs/1")
    assert get_champion(client, "theirs") is None
