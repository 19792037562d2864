"""What a version, its run and the doctor say about how the version was judged."""

from mlflow_store import BAD, GOOD, run_with_policy

from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.floor_check import check_floors
from rl_training.promotion.model_registry import get_champion
from rl_training.promotion.promote import promote

MODEL = "CartPole-v1"


def offer(checkpoint, run_id, force=None, **promotion_settings):
    """Promotes with 20 episodes."""
    settings = {"episodes": 20, **promotion_settings}
    return promote(checkpoint, config_of_checkpoint(checkpoint, {"promotion": settings}), run_id=run_id, force=force)


def champion(client) -> str | None:
    version = get_champion(client, MODEL)
    return None if version is None else str(version.version)


def tags(client, version):
    return client.get_model_version(MODEL, version).tags


def test_a_first_champion_that_nothing_judged_is_never_one_silently(client, caplog):
    checkpoint, run_id = run_with_policy(BAD)
    result = offer(checkpoint, run_id)
    assert (result.alias, result.to_dict()["judged_by"]) == ("champion", [])
    assert result.lines()[0].startswith("PROMOTE, judged by nothing but being first: registered model CartPole-v1")
    assert "the candidate was judged by nothing but being first" in result.lines()[1]
    assert "version 1 of CartPole-v1 is champion, judged by nothing but being first: set promotion.floor" in caplog.text
    assert tags(client, "1")["gate.judged_by"] == "nothing"
    description = client.get_model_version(MODEL, "1").description
    assert description.startswith("**PROMOTE, judged by nothing but being first**: mean return ")
    findings = [finding for finding in check_floors() if finding.check == "floors"]
    assert [(finding.status, finding.text) for finding in findings] == [
        ("note", "the champion of CartPole-v1, version 1, was promoted without a floor")
    ]
    assert "promotion.success_floor" in findings[0].advice
    better, better_run = run_with_policy(GOOD, seed=2)
    assert offer(better, better_run, floor=100.0).to_dict()["judged_by"] == ["promotion.floor", "champion"]
    assert list(check_floors()) == []
    assert "nothing but being first" not in client.get_model_version(MODEL, "2").description


def test_a_version_says_how_it_was_judged_and_the_run_has_the_numbers(client):
    checkpoint, run_id = run_with_policy(GOOD)
    offer(checkpoint, run_id, floor=475.0)
    run_name = client.get_run(run_id).info.run_name
    description = client.get_model_version(MODEL, "1").description
    assert description.startswith(
        f"**PROMOTE**: mean return 500 (95 % interval 500 to 500) over 20 episodes; step 100 of run {run_name}\n"
    )
    assert "\n- the candidate's mean return is 500, at least 500 with 95 % confidence" in description
    metrics = client.get_run(run_id).data.metrics
    assert (metrics["promotion/return_mean"], metrics["promotion/episodes"]) == (500.0, 20.0)
    (point,) = client.get_metric_history(run_id, "promotion/return_mean")
    assert point.step == 100


def test_a_candidate_whose_episodes_are_cut_is_held_and_its_version_says_so(client):
    checkpoint, run_id = run_with_policy(GOOD)
    cut = {"promotion": {"episodes": 20}, "evaluation": {"max_episode_steps": 50}}
    result = promote(checkpoint, config_of_checkpoint(checkpoint, cut), run_id=run_id)
    assert (result.verdict.kind, result.alias, result.verdict.numbers["cut_share"]) == ("HOLD", "challenger", 1.0)
    assert "20 of the candidate's 20 episodes (100%) were cut at evaluation.max_episode_steps" in result.lines()[1]
    assert "over 20 episodes, 20 of them cut;" in client.get_model_version(MODEL, "1").description
    assert client.get_run(run_id).data.metrics["promotion/cut_episodes"] == 20.0
    cut["promotion"] |= {"allow_cut": True}
    assert promote(checkpoint, config_of_checkpoint(checkpoint, cut), run_id=run_id).alias == "champion"


def test_a_success_floor_needs_successes(client):
    checkpoint, run_id = run_with_policy(GOOD)
    result = offer(checkpoint, run_id, success_floor=0.5)
    assert (result.verdict.kind, champion(client)) == ("HOLD", None)
    assert "20 of 20 episodes have no is_success in their last info" in result.verdict.reasons[0]


def test_a_candidate_plays_in_evaluations_own_environment(client):
    checkpoint, run_id = run_with_policy(GOOD)
    evaluation = {"wrappers": [{"name": "ClipReward", "kwargs": {"min_reward": 0.0, "max_reward": 0.5}}]}
    config = config_of_checkpoint(checkpoint, {"promotion": {"episodes": 20}, "evaluation": evaluation})
    result = promote(checkpoint, config, run_id=run_id)
    assert result.candidate.returns == (250.0,) * 20  # half a point for each of 500 steps
    assert result.verdict.numbers["raw_return_mean"] == 500.0  # beneath the wrapper
    assert client.get_run(run_id).data.metrics["promotion/raw_return_mean"] == 500.0
    description = client.get_model_version(MODEL, "1").description
    assert "mean return 250 (95 % interval 250 to 250), mean raw return 500 over 20 episodes;" in description
