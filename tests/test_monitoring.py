"""Monitoring: what counts as a drop, worked out by hand, and the monitoring run in a real registry."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mlflow_store import BAD, GOOD, WEAK, run_with_policy
from scipy.stats import beta

from rl_training.api.promotion import promote_candidate
from rl_training.api.summary import format_monitoring
from rl_training.config.sections import PromotionConfig
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.loading import config_of_checkpoint
from rl_training.promotion.model_registry import CHAMPION
from rl_training.promotion.monitoring import monitor, require_registered
from rl_training.promotion.performance_drop import DropVerdict, find_drop
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.seeding import episode_seeds

MODEL = "CartPole-v1"

RULES = PromotionConfig(episodes=20)


def around(mean: float, episodes: int = 20) -> EvaluationResult:
    returns = (mean - 1.0, mean + 1.0) * (episodes // 2)
    return EvaluationResult(tuple(range(episodes)), returns, (1,) * episodes)


def successes(count: int, episodes: int = 20) -> EvaluationResult:
    returns = (1.0,) * count + (0.0,) * (episodes - count)
    return EvaluationResult(tuple(range(episodes)), returns, (1,) * episodes)


def test_each_bound_errs_as_rarely_as_two_at_the_confidence_of_the_rules() -> None:
    """Two bounds at 95 % that are 2 * 1.64485 deviations apart are 1.64485 * sqrt(2) = 2.32617 deviations of a
    difference apart, of which the normal distribution has 98.9995 % below."""
    assert find_drop(around(10.0), None, RULES).numbers["bound_confidence"] == pytest.approx(0.989995, abs=1e-6)


def test_a_drop_is_an_upper_bound_below_the_lower_bound_at_the_promotion() -> None:
    """Of 20 successes in 20 episodes the rate is at least 0.010005^(1/20) = 0.79435, as a failure is now known to be
    possible. Of 10 it is at most 0.7610, and of 12 at most 0.8364, both by Clopper and Pearson."""
    then = successes(20)
    close = find_drop(successes(12), then, RULES)
    assert not close.dropped
    assert close.numbers["promoted_lower"] == pytest.approx(0.79435, abs=1e-5)
    assert close.numbers["upper"] == pytest.approx(beta.ppf(0.989995, 13, 8), abs=1e-5)
    dropped = find_drop(successes(10), then, RULES)
    assert dropped.dropped
    assert dropped.reasons == (
        "the mean return is 0.5, at most 0.761025 with 99 % confidence, which is below 0.794347, what it was at "
        "least when it was promoted (mean 1)",
    )


def test_more_confidence_asks_for_more_evidence() -> None:
    for confidence, dropped in ((0.9, True), (0.95, True), (0.99, False)):
        rules = PromotionConfig(episodes=20, confidence=confidence)
        assert find_drop(successes(10), successes(20), rules).dropped is dropped


def test_a_floor_above_what_it_was_promoted_with_counts_too() -> None:
    """Ten of 20 episodes return 2 more than the others: at most 2 * 0.7610 above the lower return, so 0.5220 above the
    mean."""
    rules = PromotionConfig(episodes=20, floor=10.0)
    below = find_drop(around(9.47), around(9.47), rules)
    assert below.dropped
    assert below.numbers["upper"] == pytest.approx(9.47 + 2 * beta.ppf(0.989995, 11, 10) - 1, abs=1e-5)
    assert [" is below " in f" {reason} " for reason in below.reasons] == [False, True]
    assert "which is below 10, the floor" in below.reasons[1]
    assert not find_drop(around(9.48), around(9.48), rules).dropped


def test_without_a_record_the_floor_alone_counts_and_without_a_floor_nothing() -> None:
    assert find_drop(around(9.47), None, PromotionConfig(episodes=20, floor=10.0)).dropped
    nothing = find_drop(around(-100.0), None, RULES)
    assert not nothing.dropped
    assert "neither a record of its promotion nor a floor" in nothing.reasons[0]


def test_too_few_episodes_and_equal_ones_are_no_drop() -> None:
    few = find_drop(around(0.0, episodes=18), around(10.0), RULES)
    assert not few.dropped
    assert few.reasons == ("18 episodes were played, and the rules ask for at least 20",)
    same = EvaluationResult(tuple(range(20)), (10.0,) * 20, (1,) * 20)
    assert not find_drop(same, same, RULES).dropped  # both bounds are 10
    assert find_drop(EvaluationResult(tuple(range(20)), (9.999,) * 20, (1,) * 20), same, RULES).dropped
    assert DropVerdict.from_dict(json.loads(json.dumps(asdict(few)))) == few


# In a real registry.


def champion(gains: Any, **settings: Any) -> Any:
    """Makes a champion; returns its checkpoint and the MLflow run's id."""
    checkpoint, run_id = run_with_policy(gains, **settings)
    result = promote_candidate(run_id, ["promotion.episodes=20"], force="for a test")
    assert result.alias == "champion"
    return checkpoint, run_id


def test_evaluations_of_a_champion_are_added_to_one_run_on_fresh_seeds(client: Any) -> None:
    checkpoint, _ = champion(GOOD)
    results = [monitor(f"models:/{MODEL}@champion") for _ in range(2)]
    assert [result.number for result in results] == [1, 2]
    assert [(r.drop.dropped, r.is_champion, r.version) for r in results] == [(False, True, "1")] * 2
    assert results[0].evaluation.returns == (500.0,) * 20
    (run_id,) = {result.run_id for result in results}
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rl_training.kind"] == "monitoring"
    assert run.data.tags["registered_model"] == MODEL
    points = client.get_metric_history(run_id, "monitoring/return_mean")
    assert sorted((point.step, point.value) for point in points) == [(1, 500.0), (2, 500.0)]
    assert run.data.metrics["monitoring/version"] == 1.0
    assert run.data.metrics["monitoring/promoted_lower"] == run.data.metrics["monitoring/upper"] == 500.0
    record = Path(client.download_artifacts(run_id, results[1].record.partition(f"runs:/{run_id}/")[2]))
    assert json.loads(record.read_text())["evaluation"]["seeds"] == list(results[1].evaluation.seeds)
    # No seed is used twice: not by the evaluations, the decision, training's own evaluations.
    config = config_of_checkpoint(checkpoint)
    decision = client.get_model_version(MODEL, "1")
    path = Path(client.download_artifacts(decision.run_id, f"promotions/{decision.tags['gate.promoted_by']}.json"))
    used = [
        *(result.evaluation.seeds for result in results),
        json.loads(path.read_text())["candidate"]["evaluation"]["seeds"],
        episode_seeds(config.evaluation.seed, "held_out", 100),
    ]
    assert len({seed for seeds in used for seed in seeds}) == 20 + 20 + 20 + 100


def test_an_evaluation_that_is_asked_for_again_is_finished_and_not_made_twice(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_training.promotion import monitoring

    champion(GOOD)
    with monkeypatch.context() as patch:

        def cut_off(*arguments: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(monitoring.MonitoringRun, "log", cut_off)
        with pytest.raises(KeyboardInterrupt):
            monitor(f"models:/{MODEL}@champion", evaluation_id="flow-run-1")
    monkeypatch.setattr(monitoring, "evaluate_policy", None)  # nothing is played
    again = [monitor(f"models:/{MODEL}@champion", evaluation_id="flow-run-1") for _ in range(2)]
    assert [result.number for result in again] == [1, 1]
    (point,) = client.get_metric_history(again[0].run_id, "monitoring/return_mean")
    assert (point.step, point.value) == (1, 500.0)


def test_evaluations_at_once_share_the_run_and_have_a_number_each(client: Any) -> None:
    champion(BAD)
    results: list[Any] = []
    threads = [Thread(target=lambda: results.append(monitor(f"models:/{MODEL}@champion"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.number for result in results) == [1, 2, 3]
    assert len({result.run_id for result in results}) == 1


def test_a_policy_that_plays_worse_than_when_it_was_promoted_has_dropped(client: Any) -> None:
    """Episodes are now cut after 30 steps: the world has changed, and 500 is out of reach."""
    champion(GOOD)
    result = monitor(f"models:/{MODEL}@champion", {"evaluation.max_episode_steps": 30})
    assert result.drop.dropped
    # All of 20 then and none of 20 now are 500 instead of 30: at least 0.79435 then, at most 1 - 0.79435 now.
    assert result.drop.numbers["promoted_lower"] == pytest.approx(30.0 + 470.0 * 0.79435, abs=0.01)
    assert result.drop.numbers["upper"] == pytest.approx(500.0 - 470.0 * 0.79435, abs=0.01)
    lines = format_monitoring(result.to_dict())
    assert lines[1] == f"DROPPED: registered model {MODEL}, version 1, the champion"
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()


def test_a_champion_that_was_forced_through_below_the_floor_has_not_dropped_for_that(client: Any) -> None:
    champion(BAD, promotion={"floor": 475.0})
    kept = monitor(f"models:/{MODEL}@champion")
    assert not kept.drop.dropped
    assert "floor" not in kept.drop.numbers
    again = monitor(f"models:/{MODEL}@champion", ["promotion.floor=475"])
    assert again.drop.dropped


def test_other_versions_are_compared_with_their_own_promotion_and_are_not_the_champion(client: Any) -> None:
    champion(WEAK)
    champion(GOOD, seed=2)
    result = monitor(f"models:/{MODEL}/1")
    assert (result.version, result.is_champion, result.drop.dropped) == ("1", False, False)
    # A version that was made champion by hand has no record to be compared with.
    client.delete_model_version_tag(MODEL, "1", "gate.promoted_by")
    client.set_registered_model_alias(MODEL, CHAMPION, "1")
    result = monitor(f"models:/{MODEL}@champion", {"evaluation.max_episode_steps": 5})
    assert (result.is_champion, result.drop.dropped) == (True, False)


def test_a_run_or_directory_is_played_and_has_no_monitoring_run(client: Any) -> None:
    checkpoint, run_id = run_with_policy(GOOD)
    for source in (run_id, str(checkpoint.path)):
        result = monitor(source, episodes=20)
        assert (result.model, result.run_id, result.evaluation.return_mean) == (None, None, 500.0)
        (line,) = format_monitoring(result.to_dict())
        assert line.startswith(
            "mean return 500.00 (95 % interval 500.00 to 500.00) over 20 held-out episodes\n  warning: "
        )
        with pytest.raises(UserError, match="only a champion can be rolled back; expected models:/NAME@champion"):
            require_registered(source)
    require_registered("models:/any@champion")


def test_nonsense_arguments_are_refused_and_log_nothing(client: Any) -> None:
    champion(GOOD)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"episodes": 3}, "promotion.episodes: got 3"),
        (
            {"overrides": {"learning_rate": 1}},
            "learning_rate: can't be changed here; an evaluation may set promotion.* and evaluation.* and env_kwargs.*",
        ),
        ({"overrides": {"evaluation": {"evry": 1}}}, "evaluation.evry"),
    ]
    for arguments, says in refused:
        with pytest.raises(ConfigError) as caught:
            monitor(f"models:/{MODEL}@champion", **arguments)
        assert says in str(caught.value)
    assert client.get_experiment_by_name("monitoring") is None


def test_a_model_or_version_unknown_to_the_registry_is_reported(client: Any) -> None:
    with pytest.raises(UserError, match=r"MLflow at .* has no version of a registered model 'nobody'"):
        monitor("models:/nobody@champion")
