"""The promotion gate, checked by hand and by simulation."""

import numpy as np
import pytest

from rl_training.config.sections import PromotionConfig
from rl_training.promotion.gate import compute_lower_bound, decide
from rl_training.runtime.evaluation import EvaluationResult

RULES = PromotionConfig(episodes=20)


def played(returns, seeds=None):
    returns = tuple(float(value) for value in returns)
    seeds = tuple(range(len(returns))) if seeds is None else tuple(seeds)
    return EvaluationResult(seeds, returns, (1,) * len(returns))


def test_lower_bound_by_hand():
    # 1..5: mean 3, s = sqrt(10 / 4) = 1.5811, t(4, 0.95) = 2.1318: 3 - 2.1318 * 1.5811 / sqrt(5) = 1.4926
    assert compute_lower_bound([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) == pytest.approx(1.4926, abs=1e-4)
    assert compute_lower_bound([0.1] * 7, 0.95) == 0.1


def test_a_skew_to_the_left_lowers_the_bound_by_hand():
    # 0, 1, 1, 1, 1: mean 0.8, s^2 = 0.2, third moment (-0.8^3 + 4 * 0.2^3) / 5 = -0.096, t(4, 0.95) = 2.1318:
    # 0.8 - 2.1318 * sqrt(0.2 / 5) - 0.096 / 0.2 * (1 + 2 * 2.1318^2) / (6 * 5) = 0.8 - 0.42637 - 0.16143 = 0.21220
    assert compute_lower_bound([0.0, 1.0, 1.0, 1.0, 1.0], 0.95) == pytest.approx(0.21220, abs=1e-4)
    # The other way round there is no correction: 0.2 - 0.42637.
    assert compute_lower_bound([1.0, 0.0, 0.0, 0.0, 0.0], 0.95) == pytest.approx(-0.22637, abs=1e-4)


def test_first_champion_needs_the_floor_alone():
    # Half 400, half 500: mean 450, s = 50 * sqrt(20 / 19) = 51.299, t(19, 0.95) = 1.72913: 450 - 19.835 = 430.165
    candidate = played([400, 500] * 10)
    verdict = decide(candidate, None, RULES.model_copy(update={"floor": 430.0}))
    assert verdict.kind == "PROMOTE"
    assert verdict.numbers["candidate_lower"] == pytest.approx(430.165, abs=1e-3)
    assert verdict.reasons == (
        "the candidate's mean return is 450, at least 430.165 with 95 % confidence, which reaches the floor of 430",
        "there is no champion yet",
    )
    verdict = decide(candidate, None, RULES.model_copy(update={"floor": 431.0}))  # the mean alone would pass
    assert verdict.kind == "REJECT"
    assert "does not reach the floor of 431" in verdict.reasons[0]
    assert decide(candidate, None, RULES).kind == "PROMOTE"


def test_paired_difference_by_hand():
    champion = played(range(0, 200, 10))  # spread 59, which pairing takes out
    better = played([r + (1 if i % 2 else 3) for i, r in enumerate(champion.returns)])
    # Differences 3, 1, 3, 1, ...: mean 2, s = sqrt(20 / 19) = 1.02598: 2 - 1.72913 * 1.02598 / sqrt(20) = 1.60331
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
    with pytest.raises(ValueError, match="greater than or equal to 20"):
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
    returns = rng.normal(100.0, 30.0, (2_000, 2, 100))
    coins = rng.integers(0, 2, (2_000, 2, 100)).astype(float)  # returns 0 or 1, as skewed as two values can be
    promoted = [
        sum(decide(played(a, seeds), played(b, seeds), rules).kind == "PROMOTE" for a, b in pairs)
        for pairs in (returns, coins)
    ]
    # Of 2,000 decisions between equals, a true rate of 5 % gives at most 123 at the 99 % level (binomial).
    assert 60 <= promoted[0] <= 123
    assert 60 <= promoted[1] <= 123


def test_a_clear_improvement_is_promoted():
    rng = np.random.default_rng(20260102)
    rules = PromotionConfig()
    seeds = tuple(range(rules.episodes))
    promoted = 0
    for _ in range(500):
        champion, candidate = rng.normal(0.0, 1.0, (2, rules.episodes))
        promoted += decide(played(candidate + 0.5, seeds), played(champion, seeds), rules).kind == "PROMOTE"
    # Half a deviation better: the power of the one-sided test at n = 100 is 0.97 (z = 0.5 / sqrt(2 / 100) - 1.66).
    assert promoted >= 0.93 * 500
