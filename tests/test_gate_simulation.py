"""The simulation of the gate: its draws and counts, and that its results are on the page and keep the promise."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import RESULTS
from benchmarks.promotion.gate_simulation import (
    DECISIONS,
    EQUAL,
    SEED,
    SHAPES,
    UNEQUAL,
    Case,
    count_allowed,
    format_table,
    holds,
    simulate,
    update_page,
)

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
    assert count_allowed(2_000) == 123  # the binomial's 99 % quantile: 100 + 2.33 * sqrt(2,000 * 0.05 * 0.95) = 122.7


def test_certain_cases_are_counted_as_they_must_be():
    result = simulate(Case("always the same", "always the same"), (SEED,), decisions=5)
    assert result["equal_promoted"] == result["equal_promoted_by_mean"] == 0  # a tie keeps the champion
    assert result["better_promoted"] == result["better_promoted_by_mean"] == 5
    assert result["at_floor_promoted"] == 5  # the floor is reached, not missed


def test_the_recorded_results_are_those_of_this_gate():
    """The first decisions of a case, made again: another gate, or another draw, would give other counts."""
    case = Case("a coin", "a coin")
    row = next(row for row in RESULT["equal_policies"] if row["candidate"] == "a coin")
    assert simulate(case, (SEED, EQUAL.index(case))) == row


def test_the_promise_is_kept():
    assert (RESULT["decisions"], RESULT["episodes"], RESULT["seed"]) == (DECISIONS, 100, SEED)
    rows = RESULT["equal_policies"]
    assert [(row["candidate"], row["champion"]) for row in rows] == [(case.candidate, case.champion) for case in EQUAL]
    assert len(RESULT["equal_means_alone"]) == len(UNEQUAL)
    assert max(row["equal_promoted"] for row in rows) == RESULT["most_false_promotions"] <= 123
    assert min(row["better_promoted"] for row in rows) / 2_000 == RESULT["least_power"] >= 0.8
    assert min(row["equal_promoted_by_mean"] for row in rows) > 800  # the bare mean promotes luck
    assert holds(RESULT)
    assert not holds({**RESULT, "most_false_promotions": 124})
    assert not holds({**RESULT, "least_power": 0.79})


def test_the_page_has_the_results():
    page = PAGE.read_text(encoding="utf-8")
    assert format_table(RESULT) in page
    assert update_page(page, RESULT) == page, (
        "run: python -m benchmarks.promotion.gate_simulation --table docs/promotion.md"
    )
