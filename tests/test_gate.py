"""The promotion gate, checked by hand and by simulation."""

import numpy as np
import pytest

from rl_training.config.sections import PromotionConfig
from rl_training.errors import ConfigError
from rl_training.promotion.gate import decide
from rl_training.runtime.evaluation import EvaluationResult

RULES = PromotionConfig(episodes=20)


def played(returns, seeds=None):
    returns = tuple(float(value) for value in returns)
    seeds = tuple(range(len(returns))) if seeds is None else tuple(seeds)
    return EvaluationResult(seeds, returns, (1,) * len(returns))


def test_first_champion_needs_the_floor_alone():
    # Half 400, half 500: Clopper and Pearson's bound of 10 of 20, 0.30195, lies between the two: 430.195
    candidate = played([400, 500] * 10)
    verdict = decide(candidate, None, RULES.model_copy(update={"floor": 430.0}))
    assert verdict.kind == "PROMOTE"
    assert verdict.numbers["candidate_lower"] == pytest.approx(430.195, abs=1e-3)
    assert verdict.reasons == (
        "the candidate's mean return is 450, at least 430.195 with 95 % confidence, which reaches the floor of 430",
        "there is no champion yet",
    )
    verdict = decide(candidate, None, RULES.model_copy(update={"floor": 431.0}))  # the mean alone would pass
    assert verdict.kind == "REJECT"
    assert "does not reach the floor of 431" in verdict.reasons[0]


def test_a_first_champion_without_a_floor_is_promoted_and_it_is_said_that_nothing_judged_it():
    verdict = decide(played([400, 500] * 10), None, RULES)
    assert (verdict.kind, verdict.judged_by) == ("PROMOTE", ())
    assert verdict.reasons == (
        "there is no champion yet, and no floor is set (promotion.floor, promotion.success_floor, "
        "promotion.worst_episode): the candidate was judged by nothing but being first",
    )
    judged = decide(played([400, 500] * 10), None, RULES.model_copy(update={"worst_episode": 0.0}))
    assert judged.judged_by == ("promotion.worst_episode",)
    assert decide(played([5.0] * 20), played([4.0] * 20), RULES).judged_by == ("champion",)


def test_paired_difference_by_hand():
    champion = played(range(0, 200, 10))  # spread 59, which pairing takes out
    better = played([r + (1 if i % 2 else 3) for i, r in enumerate(champion.returns)])
    # Differences 3, 1, 3, 1, ...: mean 2, s = sqrt(20 / 19) = 1.02598: 2 - 1.72913 * 1.02598 / sqrt(20) = 1.60331,
    # which is less than Gaffke's bound, 1 + 2 * 0.30195.
    verdict = decide(better, champion, RULES)
    assert verdict.kind == "PROMOTE"
    assert verdict.numbers["difference_mean"] == 2.0
    assert verdict.numbers["difference_lower"] == pytest.approx(1.60331, abs=1e-4)
    assert verdict.numbers["difference_upper"] == pytest.approx(2.39669, abs=1e-4)
    assert decide(better, champion, RULES.model_copy(update={"margin": 1.7})).kind == "HOLD"
    assert decide(champion, better, RULES).kind == "REJECT"
    assert "the candidate is worse" in decide(champion, better, RULES).reasons[0]


def test_ties_keep_the_champion():
    champion = played([500.0] * 20)
    verdict = decide(played([500.0] * 20), champion, RULES)
    assert verdict.kind == "HOLD"
    assert verdict.numbers["difference_lower"] == 0.0
    assert "ties and doubt keep the champion" in verdict.reasons[0]


def test_a_constant_difference_is_certain():
    assert decide(played([500.0] * 20), played([499.0] * 20), RULES).kind == "PROMOTE"
    assert decide(played([499.0] * 20), played([500.0] * 20), RULES).kind == "REJECT"


def test_the_floor_holds_with_a_champion_too():
    rules = RULES.model_copy(update={"floor": 475.0})
    verdict = decide(played([200.0] * 20), played([100.0] * 20), rules)
    assert (verdict.kind, len(verdict.reasons)) == ("REJECT", 1)


def test_no_episode_may_be_worse_than_the_worst_that_is_allowed():
    rules = RULES.model_copy(update={"worst_episode": 100.0})
    champion = played([300.0] * 20)
    candidate = played([500.0] * 13 + [99.0] + [500.0] * 6, seeds=range(20))
    for opponent in (None, champion):  # its mean, 480, would pass
        verdict = decide(candidate, opponent, rules)
        assert (verdict.kind, verdict.numbers["worst_return"]) == ("REJECT", 99.0)
        assert verdict.reasons == (
            "the candidate's worst episode, of seed 13, returned 99, which does not reach the floor of 100 for each "
            "episode",
        )
    verdict = decide(candidate, champion, rules.model_copy(update={"worst_episode": 99.0}))
    assert verdict.kind == "PROMOTE"
    assert "which reaches the floor of 99 for each episode" in verdict.reasons[0]
    verdict = decide(candidate, champion, rules.model_copy(update={"floor": 490.0}))
    assert (verdict.kind, len(verdict.reasons)) == ("REJECT", 2)  # both floors are named


def test_too_few_episodes_hold():
    verdict = decide(played([500.0] * 19), None, RULES)
    assert verdict.kind == "HOLD"
    assert verdict.reasons == ("19 episodes were played, and the rules ask for at least 20",)
    with pytest.raises(ConfigError, match="greater than or equal to 20"):
        PromotionConfig(episodes=3)


def test_the_least_number_of_episodes_grows_with_the_confidence():
    # 0.95^58 = 0.0510 and 0.95^59 = 0.0485; 0.95^44 = 0.1047 and 0.95^45 = 0.0994; 0.95^89 = 0.0104, 0.95^90 = 0.0099.
    assert [PromotionConfig(confidence=c).least_episodes for c in (0.9, 0.95, 0.99)] == [45, 59, 90]


def test_other_seeds_are_refused():
    with pytest.raises(ValueError, match="same episode seeds"):
        decide(played([1.0] * 20), played([1.0] * 20, seeds=range(1, 21)), RULES)


def test_false_promotions_stay_within_the_stated_risk():
    rng = np.random.default_rng(20260101)
    rules = PromotionConfig(episodes=100)
    seeds = tuple(range(100))
    returns = rng.normal(100.0, 30.0, (400, 2, 100))
    coins = rng.integers(0, 2, (400, 2, 100)).astype(float)  # returns 0 or 1, as skewed as two values can be
    promoted = [
        sum(decide(played(a, seeds), played(b, seeds), rules).kind == "PROMOTE" for a, b in pairs)
        for pairs in (returns, coins)
    ]
    # Of 400 decisions between equals, a true rate of 5 % gives at most 31 at the 99 % level (binomial).
    assert 2 <= promoted[0] <= 31
    assert 2 <= promoted[1] <= 31


def test_a_clear_improvement_is_promoted():
    rng = np.random.default_rng(20260102)
    rules = PromotionConfig()
    seeds = tuple(range(rules.episodes))
    promoted = 0
    for _ in range(200):
        champion, candidate = rng.normal(0.0, 1.0, (2, rules.episodes))
        promoted += decide(played(candidate + 0.5, seeds), played(champion, seeds), rules).kind == "PROMOTE"
    # Half a deviation better: the power of Student's one-sided test at n = 100 is 0.97, as z is 0.5 / sqrt(2 / 100) -
    # 1.66. Gaffke's bound counts the worst difference, about -2.4, once more, which lowers z by 0.24, to 0.95.
    assert promoted >= 0.9 * 200


def judged(successes, cut=0):
    count = len(successes)
    return EvaluationResult(tuple(range(count)), (1.0,) * count, (1,) * count, cut, {"is_success": tuple(successes)})


def test_the_success_rate_needs_its_lower_bound_at_the_floor():
    # All of 20 are successes: 0.05^(1/20) = 0.86089. With one failure it is the 5 % quantile of Beta(19, 2), 0.78389.
    rules = RULES.model_copy(update={"success_floor": 0.86})
    verdict = decide(judged([1.0] * 20), None, rules)
    assert (verdict.kind, verdict.judged_by) == ("PROMOTE", ("promotion.success_floor",))
    assert verdict.numbers["success_lower"] == pytest.approx(0.860891, abs=1e-6)
    assert verdict.reasons[0] == (
        "the candidate succeeded in 20 of 20 episodes, a rate of at least 0.8609 with 95 % confidence, which reaches "
        "the floor of 0.86 for the success rate"
    )
    verdict = decide(judged([1.0] * 19 + [0.0]), None, rules)
    assert verdict.kind == "REJECT"
    assert verdict.numbers["success_lower"] == pytest.approx(0.783894, abs=1e-6)
    assert verdict.numbers["success_rate"] == 0.95
    assert decide(judged([1.0] * 20), None, rules.model_copy(update={"success_floor": 0.861})).kind == "REJECT"
    assert decide(judged([0.0] * 20), None, rules).numbers["success_lower"] == 0.0


def test_a_success_rate_that_is_not_known_holds():
    rules = RULES.model_copy(update={"success_floor": 0.5, "floor": 0.0})
    verdict = decide(played([1.0] * 20), None, rules)
    assert verdict.kind == "HOLD"
    assert "20 of 20 episodes have no is_success in their last info" in verdict.reasons[1]
    verdict = decide(judged([1.0] * 18 + [None] * 2), None, rules)
    assert verdict.kind == "HOLD"
    assert "2 of 20 episodes have no is_success" in verdict.reasons[1]
    assert decide(played([-1.0] * 20), None, rules).kind == "REJECT"  # the other floor is missed


@pytest.mark.parametrize("lost", [None, "the champion is lost"])
def test_a_floor_on_a_success_rate_that_is_not_known_is_not_called_missing(lost):
    verdict = decide(played([1.0] * 20), None, RULES.model_copy(update={"success_floor": 0.5}), lost=lost)
    assert verdict.kind == "HOLD"
    assert not [reason for reason in verdict.reasons if "no floor is set" in reason]


def test_a_candidate_with_cut_episodes_is_not_promoted_unless_the_rules_allow_it():
    cut = EvaluationResult(tuple(range(20)), (500.0,) * 20, (1,) * 20, 5)
    for champion in (None, played([400.0] * 20)):
        verdict = decide(cut, champion, RULES)
        assert (verdict.kind, verdict.numbers["cut_share"]) == ("HOLD", 0.25)
        assert "5 of the candidate's 20 episodes (25%) were cut at evaluation.max_episode_steps" in verdict.reasons[0]
        allowed = decide(cut, champion, RULES.model_copy(update={"allow_cut": True}))
        assert (allowed.kind, allowed.numbers["cut_share"]) == ("PROMOTE", 0.25)
    assert decide(cut, played([600.0] * 20), RULES).kind == "REJECT"
    assert decide(played([500.0] * 20), None, RULES).numbers["cut_share"] == 0.0


def test_returns_of_any_size_have_a_verdict():
    tiny = decide(played([0.0] * 29 + [1e-200]), played([0.0] * 30), RULES)
    assert tiny.kind == "HOLD"
    # One of thirty: 1e-200 * (1 - 0.95^(1/30)).
    assert tiny.numbers["candidate_lower"] == pytest.approx(1.70832e-203, rel=1e-5)
    huge = decide(played([1e160, 3e160] * 10), played([-1e160, 1e160] * 10), RULES)
    assert huge.kind == "PROMOTE"
    assert huge.numbers["difference_lower"] == pytest.approx(2e160)
    assert huge.numbers["candidate_lower"] == pytest.approx(1.60390e160, rel=1e-4)
    result = played([1e160, 3e160] * 10)
    assert result.return_std == pytest.approx(1e160 * (20 / 19) ** 0.5)
    assert played([0.0] * 29 + [1e-200]).return_std == pytest.approx(1e-200 / 30**0.5)


def test_a_champion_that_can_not_be_loaded_leaves_the_floors_or_an_earlier_champion_to_decide():
    lost = "the champion, version 2, can't be loaded: no files"
    verdict = decide(played([5.0] * 20), None, RULES, lost=lost)
    assert verdict.kind == "HOLD"
    assert verdict.reasons[0] == lost
    assert "nothing can judge the candidate; set a floor, or promote it with --force" in verdict.reasons[1]
    verdict = decide(played([5.0] * 20), None, RULES.model_copy(update={"floor": 5.0}), lost=lost)
    assert (verdict.kind, verdict.reasons[1]) == ("PROMOTE", lost)
    assert "the floors alone decide" in verdict.reasons[2]
    assert decide(played([5.0] * 20), played([4.0] * 20), RULES, lost=lost).kind == "PROMOTE"
    assert decide(played([4.0] * 20), played([5.0] * 20), RULES, lost=lost).kind == "REJECT"


def test_equal_returns_of_different_starts_are_named_among_the_reasons():
    doubted = EvaluationResult(tuple(range(20)), (500.0,) * 20, (1,) * 20, starts=20)
    verdict = decide(doubted, None, RULES.model_copy(update={"floor": 400.0}))
    assert verdict.kind == "PROMOTE"
    assert verdict.reasons[1].startswith("all 20 returns are 500.00, although the episodes began differently")
    sure = EvaluationResult(tuple(range(20)), (500.0,) * 20, (1,) * 20, starts=1)
    assert len(decide(sure, None, RULES).reasons) == len(verdict.reasons) - 2
