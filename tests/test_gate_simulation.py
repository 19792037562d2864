"""The simulation of the gate: its draws and counts, and that its results are on the page and keep the promise."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import RESULTS
from benchmarks.promotion.gate_simulation import (
    CHECKED,
    DECISIONS,
    EPISODES,
    EQUAL,
    PROMOTED,
    SEED,
    SHAPES,
    UNEQUAL,
    Case,
    count_allowed,
    format_table,
    format_watch_table,
    holds,
    simulate,
    simulate_watch,
    update_page,
)
from rl_training.config.sections import PromotionConfig

RESULT = json.loads((RESULTS / "gate.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[1] / "docs" / "promotion.md"


@pytest.mark.parametrize("name", SHAPES)
def test_returns_have_the_given_mean_and_deviation(name):
    returns = SHAPES[name](np.random.default_rng(0), (400, 500))
    assert returns.shape == (400, 500)
    # Over 200,000 draws the mean's deviation is 0.0022; the deviation of the heaviest tail is 2 % off.
    assert abs(returns.mean()) < 0.01
    assert returns.std() == pytest.approx(0.0 if name == "always the same" else 1.0, abs=0.03)


def test_what_a_true_rate_of_5_percent_allows():
    assert count_allowed(500) == 37  # the binomial's 99 % quantile: 25 + 2.33 * sqrt(500 * 0.05 * 0.95) = 36.4


def test_certain_cases_are_counted_as_they_must_be():
    result = simulate(Case("always the same", "always the same"), 20, (SEED,), decisions=5)
    assert result["equal_promoted"] == result["equal_promoted_by_mean"] == 0  # a tie keeps the champion
    assert result["better_promoted"] == result["better_promoted_by_mean"] == 5
    assert result["at_floor_promoted"] == 5  # the floor is reached, not missed
    watch = simulate_watch("always the same", 20, (SEED,), promoted=3)
    assert (watch["at_floor_dropped"], watch["any_dropped"], watch["worse_dropped"]) == (0, 0, 3)


def test_the_recorded_results_are_those_of_this_gate():
    """The first decisions of a case, made again: another gate, or another draw, would give other counts."""
    assert simulate(*CHECKED, (SEED,), decisions=50) == RESULT["first_decisions"]


def test_the_promise_is_kept():
    assert (RESULT["decisions"], RESULT["promoted"], RESULT["seed"]) == (DECISIONS, PROMOTED, SEED)
    rows = RESULT["equal_policies"]
    assert [(row["candidate"], row["champion"], row["episodes"]) for row in rows] == [
        (case.candidate, case.champion, episodes) for case in EQUAL for episodes in EPISODES
    ]
    assert len(RESULT["equal_means_alone"]) == len(UNEQUAL) * len(EPISODES)
    assert max(row["equal_promoted"] for row in rows) == RESULT["most_false_promotions"] <= 37
    assert min(row["better_promoted"] for row in rows if row["episodes"] == 100) / 500 == RESULT["least_power"] >= 0.8
    assert min(row["equal_promoted_by_mean"] for row in rows) > 175  # the bare mean promotes luck
    assert holds(RESULT)
    assert not holds({**RESULT, "most_false_promotions": 38})
    assert not holds({**RESULT, "least_power": 0.79})


def test_returns_skewed_to_the_left_keep_the_rate_at_the_floor_from_the_least_number_of_episodes_on():
    rows = [row for row in RESULT["equal_policies"] if row["episodes"] >= PromotionConfig().least_episodes]
    assert {row["candidate"] for row in rows} >= {"exponential, downwards", "lognormal, downwards", "5 % failures"}
    assert max(row["at_floor_promoted"] for row in rows) <= 37


def test_an_unchanged_champion_at_its_floor_seldom_drops():
    """Of 200 evaluations, a true rate of 1 % gives at most 6 drops at the 99 % level; rare failures are told apart."""
    rows = [row for row in RESULT["watched"] if row["returns"] != "5 % failures" and row["episodes"] == 100]
    assert len(rows) == 4
    assert max(row["at_floor_dropped"] for row in rows) <= 6
    assert min(row["worse_dropped"] for row in rows) >= 0.9 * 200


def test_the_page_has_the_results():
    page = PAGE.read_text(encoding="utf-8")
    assert format_table(RESULT) in page
    assert format_watch_table(RESULT) in page
    assert update_page(page, RESULT) == page, (
        "run: python -m benchmarks.promotion.gate_simulation --table docs/promotion.md"
    )
