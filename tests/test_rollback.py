"""Rollbacks: to which version, how far, and when they are refused."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow_store import BAD, GOOD, WEAK, run_with_policy

from rl_training.api.promotion import promote_candidate, roll_back
from rl_training.errors import CheckpointError, TrackingError, UserError
from rl_training.promotion.champion_history import list_previous_champions
from rl_training.promotion.model_registry import get_champion
from rl_training.promotion.monitoring import monitor

MODEL = "CartPole-v1"
RULES = ["promotion.episodes=20"]


def champions(client, *gains):
    """Promotes a controller each, by force where the gate does not; returns the runs' ids."""
    runs = [run_with_policy(gain, seed=seed)[1] for seed, gain in enumerate(gains)]
    for run_id in runs:
        assert promote_candidate(run_id, RULES, force="a test").alias == "champion"
    return runs


def champion(client):
    return str(get_champion(client, MODEL).version)


def aliases(client):
    return {alias: str(version) for alias, version in client.get_registered_model(MODEL).aliases.items()}


def numbers_before(client, version):
    return (str(earlier.version) for earlier in list_previous_champions(client, MODEL, version))


def test_the_previous_champion_is_champion_again(client):
    champions(client, BAD, WEAK)
    result = roll_back(MODEL, reason="  falls over\nin the field ")
    assert (result.version, result.previous_version, result.reason) == ("1", "2", "falls over in the field")
    assert champion(client) == "1"
    tags = client.get_model_version(MODEL, "2").tags
    assert json.loads(tags["gate.rolled_back"])["reason"] == "falls over in the field"
    assert aliases(client) == {"champion": "1"}  # what was rolled back does not challenge the champion
    description = client.get_model_version(MODEL, "2").description
    assert description.startswith(f"Rolled back to version 1 on {result.time}: falls over in the field\n")
    assert "mean return" in description
    assert result.to_dict() == {
        "model": MODEL,
        "version": "1",
        "previous_version": "2",
        "reason": "falls over in the field",
        "time": result.time,
    }
    assert (
        result.lines()[0]
        == f"rolled back: version 1 of registered model {MODEL} is champion again, in place of version 2"
    )


@pytest.mark.slow
def test_what_was_rolled_back_comes_back_by_new_evidence_only(client):
    _, run_id = run_with_policy(BAD, seed=0)
    promote_candidate(run_id, RULES)
    _, better = run_with_policy(WEAK, seed=1)
    before = promote_candidate(better, RULES)
    assert before.alias == "champion"
    roll_back(MODEL, reason="a test")
    after = promote_candidate(better, RULES)
    assert (after.version, after.alias, champion(client)) == ("2", "champion", "2")
    assert not set(before.candidate.seeds) & set(after.candidate.seeds)
    roll_back(MODEL, reason="another test")  # which counts, although this version was rolled back once before
    assert champion(client) == "1"


@pytest.mark.slow
def test_each_rollback_goes_one_version_further_and_skips_deleted_versions(client):
    champions(client, BAD, WEAK, BAD, WEAK)
    assert next(numbers_before(client, "4")) == "3"
    client.delete_model_version(MODEL, "3")
    assert next(numbers_before(client, "4")) == "2"
    assert roll_back(MODEL, reason="a test").version == "2"
    assert roll_back(MODEL, reason="a test").version == "1"
    with pytest.raises(UserError, match="version 1 of CartPole-v1 has no champion before it that is still there"):
        roll_back(MODEL, reason="a test")
    assert champion(client) == "1"


@pytest.mark.slow
def test_rollbacks_do_not_go_to_and_fro(client):
    first, _ = champions(client, BAD, WEAK)
    assert promote_candidate(first, RULES, force="the old one").alias == "champion"
    assert champion(client) == "1"
    assert roll_back(MODEL, reason="a test").version == "2"
    with pytest.raises(UserError, match="no champion before it that is still there and was not rolled back"):
        roll_back(MODEL, reason="a test")


@pytest.mark.slow
def test_a_rollback_of_one_version_is_done_once(client):
    champions(client, BAD, WEAK)
    first = roll_back(MODEL, reason="a drop", version="2")
    assert roll_back(MODEL, reason="a drop, asked again", version="2") == first
    assert champion(client) == "1"
    with pytest.raises(UserError, match=r"version=3\) not found"):
        roll_back(MODEL, reason="a drop", version="3")
    champions(client, WEAK)
    with pytest.raises(UserError, match=r"version 2 is not the champion of CartPole-v1 \(version 3 is\)"):
        roll_back(MODEL, reason="a drop", version="2")
    assert champion(client) == "3"


def test_there_must_be_a_champion_a_model_and_a_reason(client):
    with pytest.raises(UserError, match="has no such thing"):
        roll_back(MODEL, reason="a test")
    champions(client, BAD, WEAK)
    with pytest.raises(UserError, match="a rollback needs a reason"):
        roll_back(MODEL, reason=" \n")
    client.delete_model_version(MODEL, "2")  # and with it the alias
    with pytest.raises(
        UserError, match=r"no champion to roll back; .*`rl-training promote models:/CartPole-v1/VERSION`"
    ):
        roll_back(MODEL, reason="a test")


@pytest.mark.slow
def test_a_previous_champion_that_is_damaged_is_not_made_champion(client):
    champions(client, BAD, WEAK)
    root = Path(client.get_model_version_download_uri(MODEL, "1").removeprefix("file://"))
    path = root / "data" / "checkpoint" / "policy.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(
        CheckpointError, match=r"version 1 .*the champion before, can't be used: .*policy\.pt is damaged"
    ):
        roll_back(MODEL, reason="a test")
    assert champion(client) == "2"


@pytest.mark.slow
def test_a_rollback_that_was_cut_off_is_done_when_it_is_asked_again(client, monkeypatch):
    champions(client, BAD, WEAK)
    set_alias = MlflowClient.set_registered_model_alias

    def cut_off(self, name, alias, version):
        raise MlflowException("connection lost")

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", cut_off)
    with pytest.raises(TrackingError, match="connection lost"):
        roll_back(MODEL, reason="a test", version="2")
    assert champion(client) == "2"
    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", set_alias)
    assert roll_back(MODEL, reason="a test", version="2").version == "1"


def files(client, version):
    return Path(client.get_model_version_download_uri(MODEL, version).removeprefix("file://"))


@pytest.mark.slow
def test_a_champion_that_is_damaged_can_be_rolled_back(client):
    champions(client, BAD, WEAK)
    (files(client, "2") / "data" / "checkpoint" / "policy.pt").write_bytes(b"")
    assert roll_back(MODEL, reason="damaged").version == "1"
    _, run_id = run_with_policy(GOOD, seed=9)
    assert promote_candidate(run_id, RULES).previous_version == "1"


@pytest.mark.slow
def test_a_champion_whose_files_are_gone_is_named_and_the_one_before_judges(client):
    champions(client, WEAK, GOOD)
    shutil.rmtree(files(client, "2"))
    with pytest.raises(
        CheckpointError,
        match=r"the champion of CartPole-v1, version 2, can't be loaded: .*; go back with `rl-training rollback Ca",
    ):
        monitor(f"models:/{MODEL}@champion")
    _, worse = run_with_policy(BAD, seed=8)
    rejected = promote_candidate(worse, RULES)
    assert (rejected.verdict.kind, champion(client)) == ("REJECT", "2")
    assert rejected.verdict.reasons[0].startswith("the champion, version 2, can't be loaded: version 2 of CartPole-v1")
    assert "manifest.json: No such artifact" in rejected.verdict.reasons[0]
    assert "#" not in rejected.verdict.reasons[0]
    assert rejected.verdict.reasons[0].endswith("; version 1, the last champion that can be, is compared in its place")
    assert (rejected.previous_version, rejected.opponent_version) == ("2", "1")
    assert promote_candidate(worse, RULES) == rejected  # the recorded decision
    forced = promote_candidate(worse, RULES, force="the store lost the champion")
    assert (forced.alias, forced.previous_version, champion(client)) == ("champion", "2", forced.version)


@pytest.mark.slow
def test_a_lost_champion_without_one_before_leaves_the_floors_to_decide(client):
    champions(client, WEAK)
    kept = files(client, "1").rename(files(client, "1").with_name("elsewhere"))
    _, run_id = run_with_policy(GOOD, seed=9)
    held = promote_candidate(run_id, RULES)
    assert (held.verdict.kind, held.alias, held.opponent_version) == ("HOLD", "challenger", None)
    assert "nothing can judge the candidate; set a floor, or promote it with --force" in held.verdict.reasons[-1]
    kept.rename(files(client, "1"))
    assert promote_candidate(run_id, RULES).alias == "champion"  # the champion can be played against again
    shutil.rmtree(files(client, "2"))
    shutil.rmtree(files(client, "1"))
    _, other = run_with_policy(WEAK, seed=10)
    promoted = promote_candidate(other, [*RULES, "promotion.floor=20"])
    assert (promoted.verdict.kind, promoted.alias, promoted.previous_version) == ("PROMOTE", "champion", "2")
    assert promoted.verdict.judged_by == ("promotion.floor",)
    with pytest.raises(CheckpointError, match=r"version 2 of CartPole-v1, the champion before, can't be used: "):
        roll_back(MODEL, reason="a test")
