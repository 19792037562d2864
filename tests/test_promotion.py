"""Promotion in a real registry: which model becomes champion, on which evidence, and what an interruption leaves."""

import hashlib
import json
import re
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow_store import BAD, GOOD, WEAK, run_with_policy, ship_all, write_policy

from rl_training.errors import TrackingError, UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion import promote as promote_module
from rl_training.promotion.decision import draw_fresh_seeds
from rl_training.promotion.model_registry import get_champion, get_model_name
from rl_training.promotion.promote import promote
from rl_training.promotion.rollback import roll_back
from rl_training.runtime.workflows import load_policy
from rl_training.seeding import env_seeds, episode_seeds
from rl_training.system.paths import embedded_tracking_uri

MODEL = "CartPole-v1"


def offer(checkpoint, run_id, force=None, **promotion_settings):
    """Promotes with 20 episodes."""
    settings = {"episodes": 20, **promotion_settings}
    return promote(checkpoint, config_of_checkpoint(checkpoint, {"promotion": settings}), run_id=run_id, force=force)


def champion(client) -> str | None:
    version = get_champion(client, MODEL)
    return None if version is None else str(version.version)


def aliases(client) -> dict[str, str]:
    return {alias: str(version) for alias, version in client.get_registered_model(MODEL).aliases.items()}


def tags(client, version):
    return client.get_model_version(MODEL, version).tags


def test_the_first_champion_needs_the_floor_alone(client):
    checkpoint, run_id = run_with_policy(GOOD)
    result = offer(checkpoint, run_id, floor=475.0)
    assert (result.verdict.kind, result.alias, result.model) == ("PROMOTE", "champion", MODEL)
    assert result.champion is None
    assert result.previous_version is None
    assert result.candidate.returns == (500.0,) * 20
    assert champion(client) == result.version == "1"
    written = tags(client, "1")
    assert written["gate.verdict"] == "PROMOTE"
    assert "reaches the floor of 475" in written["gate.reasons"]
    assert json.loads(written["gate.numbers"])["candidate_lower"] == 500.0
    assert written["policy_sha256"] == checkpoint.policy_sha256
    record = Path(client.download_artifacts(run_id, f"promotions/{result.decision_id}.json"))
    assert json.loads(record.read_text())["candidate"]["evaluation"]["seeds"] == list(result.candidate.seeds)


def test_below_the_floor_nobody_becomes_champion(client):
    checkpoint, run_id = run_with_policy(BAD)
    result = offer(checkpoint, run_id, floor=475.0)
    assert (result.verdict.kind, result.alias) == ("REJECT", None)
    assert champion(client) is None
    assert aliases(client) == {}


def test_of_rejected_versions_the_newest_three_stay_and_what_was_ever_named_or_champion(client):
    checkpoint, run_id = run_with_policy(BAD)
    assert offer(checkpoint, run_id, force="the first one").alias == "champion"
    offers = [run_with_policy(BAD, seed=seed) for seed in range(1, 7)]
    results = [offer(*candidate, floor=475.0) for candidate in offers[:2]]
    client.set_registered_model_alias(MODEL, "look", results[0].version)
    results += [offer(*candidate, floor=475.0) for candidate in offers[2:]]
    assert [result.verdict.kind for result in results] == ["REJECT"] * 6
    left = {int(version.version) for version in client.search_model_versions(f"name = '{MODEL}'")}
    assert left == {1, 2, 5, 6, 7}
    gone = results[1]
    record = Path(client.download_artifacts(gone.run_id, f"promotions/{gone.decision_id}.json"))
    assert json.loads(record.read_text())["verdict"]["kind"] == "REJECT"
    assert client.get_run(gone.run_id).data.metrics["promotion/return_mean"] == gone.candidate.return_mean


def test_the_registered_version_predicts_without_pickle(client, tmp_path):
    checkpoint, run_id = run_with_policy(GOOD)
    offer(checkpoint, run_id)
    mlflow.set_tracking_uri(embedded_tracking_uri())
    try:
        model = mlflow.pyfunc.load_model(f"models:/{MODEL}@champion")
        files = Path(mlflow.artifacts.download_artifacts(f"models:/{MODEL}@champion", dst_path=str(tmp_path / "m")))
    finally:
        mlflow.set_tracking_uri(None)  # an address would stay in the environment, for the tests after this one
    observations = np.random.default_rng(0).normal(0, 0.1, (5, 4)).astype(np.float32)
    actions = model.predict(observations)
    assert actions.tolist() == load_policy(checkpoint).act(list(observations))
    assert set(actions.tolist()) == {0, 1}
    assert str(model.metadata.signature.inputs) == "[Tensor('float32', (-1, 4))]"
    assert str(model.metadata.signature.outputs) == "[Tensor('int64', (-1,))]"
    names = {path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("data/")} == {
        "data/checkpoint/manifest.json",
        "data/checkpoint/config.yaml",
        "data/checkpoint/policy.pt",
    }
    assert not [name for name in names if name.endswith((".pkl", ".py"))]


def test_a_better_candidate_takes_over_on_the_same_fresh_seeds(client):
    first, first_run = run_with_policy(BAD, seed=1)
    offer(first, first_run)
    better, better_run = run_with_policy(GOOD, seed=2)
    result = offer(better, better_run)
    assert (result.verdict.kind, result.alias, result.version) == ("PROMOTE", "champion", "2")
    assert result.previous_version == "1"
    assert result.champion is not None
    assert result.champion.seeds == result.candidate.seeds
    assert result.champion.return_mean < 15 < result.candidate.return_mean == 500.0
    assert aliases(client) == {"champion": "2", "challenger": "2"}
    assert tags(client, "2")["gate.previous_champion"] == "1"

    worse, worse_run = run_with_policy(WEAK, seed=3)
    result = offer(worse, worse_run)
    assert (result.verdict.kind, result.alias) == ("REJECT", None)
    assert champion(client) == "2"


def test_a_tie_keeps_the_champion(client):
    checkpoint, run_id = run_with_policy(GOOD, seed=1)
    offer(checkpoint, run_id)
    equal, equal_run = run_with_policy(GOOD, seed=2)  # the champion's own policy, from another run
    result = offer(equal, equal_run)
    assert (result.verdict.kind, result.alias) == ("HOLD", "challenger")
    assert aliases(client) == {"champion": "1", "challenger": "2"}


def test_offering_the_same_again_plays_nothing(client, monkeypatch):
    first, first_run = run_with_policy(WEAK, seed=1)
    offer(first, first_run)
    equal, equal_run = run_with_policy(WEAK, seed=2)
    held, promoted = offer(equal, equal_run), offer(first, first_run)
    monkeypatch.setattr(promote_module, "evaluate_policy", None)
    assert offer(equal, equal_run) == held
    assert offer(first, first_run) == promoted
    assert (held.verdict.kind, promoted.verdict.kind) == ("HOLD", "PROMOTE")
    assert len(client.search_model_versions(f"name = '{MODEL}'")) == 2


def test_what_is_not_used_because_the_champion_itself_is_offered_is_named(client, caplog):
    checkpoint, run_id = run_with_policy(GOOD)
    first = offer(checkpoint, run_id, floor=475.0)
    assert offer(checkpoint, run_id, floor=475.0).decision_id == first.decision_id
    assert "champion already" not in caplog.text
    again = offer(checkpoint, run_id, force="it is the best", floor=400.0)
    assert (again.decision_id, again.forced, again.alias) == (first.decision_id, None, "champion")
    (said,) = [record.getMessage() for record in caplog.records if "champion already" in record.getMessage()]
    assert said == (
        f"version 1 of {MODEL} is the champion already, so the decision that made it champion stands; not used: "
        f"promotion.floor, the reason to force it"
    )


def test_other_rules_are_another_decision_with_other_seeds(client):
    first, first_run = run_with_policy(WEAK, seed=1)
    offer(first, first_run)
    equal, equal_run = run_with_policy(WEAK, seed=2)
    one, two = offer(equal, equal_run), offer(equal, equal_run, confidence=0.9)
    assert one.decision_id != two.decision_id
    assert not set(one.candidate.seeds) & set(two.candidate.seeds)


def test_a_decision_that_was_cut_off_before_the_alias_is_finished(client, monkeypatch):
    checkpoint, run_id = run_with_policy(GOOD)
    set_alias = MlflowClient.set_registered_model_alias

    def cut_off(self, name, alias, version):
        if alias == "champion":
            raise MlflowException("connection lost")
        set_alias(self, name, alias, version)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", cut_off)
    with pytest.raises(TrackingError, match="connection lost"):
        offer(checkpoint, run_id)
    assert champion(client) is None
    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", set_alias)
    monkeypatch.setattr(promote_module, "evaluate_policy", None)
    result = offer(checkpoint, run_id)
    assert (result.verdict.kind, result.alias, champion(client)) == ("PROMOTE", "champion", "1")


def test_a_forced_promotion_has_a_reason_and_its_evidence(client):
    good, good_run = run_with_policy(WEAK, seed=1)
    offer(good, good_run)
    worse, worse_run = run_with_policy(BAD, seed=2)
    assert offer(worse, worse_run).alias is None
    with pytest.raises(UserError, match="a forced promotion needs a reason"):
        offer(worse, worse_run, force="  ")
    result = offer(worse, worse_run, force="the sensor\nhas changed; https://me:hunter2@host/why")
    assert (result.verdict.kind, result.alias, champion(client)) == ("REJECT", "champion", "2")
    assert result.forced == "the sensor has changed; https://me:***@host/why"
    written = tags(client, "2")
    assert (written["gate.forced"], written["gate.verdict"]) == (result.forced, "REJECT")
    assert written["gate.previous_champion"] == "1"
    record = json.loads(Path(client.download_artifacts(worse_run, f"promotions/{result.decision_id}.json")).read_text())
    assert record["forced"] == result.forced
    assert len(record["champion"]["evaluation"]["returns"]) == 20
    assert result.to_dict()["forced"] == result.forced
    assert result.lines()[0].startswith("REJECT, forced (the sensor has changed; ")
    assert offer(worse, worse_run).alias == "champion"  # it is


def test_a_decision_that_is_not_forced_says_nothing_of_force(client):
    first, first_run = run_with_policy(WEAK, seed=1)
    offer(first, first_run)
    worse, worse_run = run_with_policy(BAD, seed=2)
    offer(worse, worse_run, force="a test")
    roll_back(MODEL, reason="it was no good idea")
    assert offer(worse, worse_run).alias is None
    assert "gate.forced" not in tags(client, "2")
    assert tags(client, "2")["gate.verdict"] == "REJECT"


def test_a_version_without_an_alias_is_no_champion(client):
    first, first_run = run_with_policy(BAD, seed=1)
    assert offer(first, first_run, floor=475.0).alias is None
    second, second_run = run_with_policy(WEAK, seed=2)
    assert (offer(second, second_run).champion, champion(client)) == (None, "2")


def test_a_champion_made_by_hand_is_played_against_and_kept(client):
    first, first_run = run_with_policy(BAD, seed=1)
    offer(first, first_run, floor=475.0)
    client.set_registered_model_alias(MODEL, "champion", "1")  # in MLflow's page, say
    result = offer(first, first_run)
    assert (result.verdict.kind, result.alias) == ("HOLD", "champion")
    second, second_run = run_with_policy(WEAK, seed=2)
    assert offer(second, second_run).previous_version == "1"
    assert (roll_back(MODEL, reason="a test").version, champion(client)) == ("1", "1")


def test_a_champion_that_changes_meanwhile_is_played_against_too(client, monkeypatch):
    for seed, gains in enumerate((BAD, WEAK)):
        offer(*run_with_policy(gains, seed=seed), force="a test")
    client.set_registered_model_alias(MODEL, "champion", "1")
    candidate, run_id = run_with_policy(BAD, seed=7)
    decide = promote_module.decide

    def someone_else_acts(*results, **options):
        client.set_registered_model_alias(MODEL, "champion", "2")
        return decide(*results, **options)

    monkeypatch.setattr(promote_module, "decide", someone_else_acts)
    result = offer(candidate, run_id, force="so that the gate does not hold it")
    assert (result.alias, result.previous_version, champion(client)) == ("champion", "2", "3")
    assert {tag for tag in tags(client, "3") if tag.startswith("decision.")} > {f"decision.{result.decision_id}"}


def test_a_deleted_champion_makes_the_next_one_the_first(client):
    first, first_run = run_with_policy(GOOD, seed=1)
    offer(first, first_run)
    client.delete_model_version(MODEL, "1")
    second, second_run = run_with_policy(BAD, seed=2)
    result = offer(second, second_run)
    assert (result.verdict.kind, result.champion, champion(client)) == ("PROMOTE", None, "2")
    assert offer(first, first_run).alias == "champion"  # registered again, and better
    assert champion(client) == "3"


def test_trouble_is_not_taken_for_no_champion(client, monkeypatch):
    checkpoint, run_id = run_with_policy(GOOD)

    def fail(self, name, alias):
        raise MlflowException("database is locked")  # INTERNAL_ERROR

    monkeypatch.setattr(MlflowClient, "get_model_version_by_alias", fail)
    with pytest.raises(TrackingError, match="database is locked"):
        offer(checkpoint, run_id)
    assert aliases(client) == {}


def test_a_champion_whose_copy_is_damaged_is_named_and_stays_until_something_can_judge(client):
    first, first_run = run_with_policy(WEAK, seed=1)
    offer(first, first_run)
    root = Path(client.get_model_version_download_uri(MODEL, "1").removeprefix("file://"))
    path = root / "data" / "checkpoint" / "policy.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    better, better_run = run_with_policy(GOOD, seed=2)
    held = offer(better, better_run)
    assert (held.verdict.kind, champion(client)) == ("HOLD", "1")
    assert re.match(r"the champion, version 1, can't be loaded: .*policy\.pt is damaged", held.verdict.reasons[0])
    record = json.loads(Path(client.download_artifacts(better_run, f"promotions/{held.decision_id}.json")).read_text())
    assert record["lost_champion"] == {"version": "1", "reason": held.verdict.reasons[0]}
    result = offer(better, better_run, floor=475.0)
    assert (result.verdict.kind, result.alias, result.previous_version) == ("PROMOTE", "champion", "1")


def test_a_run_that_mlflow_does_not_know_is_an_error(client):
    checkpoint, _ = run_with_policy(GOOD)
    with pytest.raises(UserError, match=r"Run with id=0+ not found"):
        offer(checkpoint, "0" * 32)


def test_fresh_seeds_belong_to_one_decision_and_were_never_used(client):
    checkpoint, _ = run_with_policy(GOOD)
    config = config_of_checkpoint(checkpoint)
    one = draw_fresh_seeds("decision-1", 200, [config])
    assert one == draw_fresh_seeds("decision-1", 200, [config])
    assert len(set(one)) == 200
    assert not set(one) & set(draw_fresh_seeds("decision-2", 200, [config]))
    used = {*env_seeds(config.seed, config.num_envs), *episode_seeds(config.evaluation.seed, "held_out", 100)}
    assert not set(one) & used
    # Were the decision's own stream the one that was used, none of its seeds would be taken.
    number = int.from_bytes(hashlib.sha256(b"decision-1").digest())
    evaluation = config.evaluation.model_copy(update={"seed": number, "final_episodes": 50})
    clash = config.model_copy(update={"evaluation": evaluation})
    assert not set(draw_fresh_seeds("decision-1", 200, [clash])) & set(episode_seeds(number, "held_out", 50))


def test_names_of_models(client):
    checkpoint, _ = run_with_policy(GOOD)
    config = config_of_checkpoint(checkpoint)
    assert get_model_name(config) == "CartPole-v1"
    assert get_model_name(config.model_copy(update={"env_id": "my.plug_in:Env/Sub-v0"})) == "my.plug_in-Env-Sub-v0"
    named = config_of_checkpoint(checkpoint, {"promotion": {"model": "cart.pole"}})
    assert get_model_name(named) == "cart.pole"


def test_a_resumed_run_offers_its_new_policy_as_a_new_version(client):
    checkpoint, run_id = run_with_policy(BAD)
    offer(checkpoint, run_id)
    run_dir = checkpoint.path.parent.parent
    newer = write_policy(run_dir, 200, GOOD)
    ship_all(run_dir)
    result = offer(newer, run_id)
    assert (result.version, result.alias, champion(client)) == ("2", "champion", "2")
    assert tags(client, "2")["checkpoint"] == "step_000000000200"
