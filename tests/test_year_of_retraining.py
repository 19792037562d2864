"""The benchmark of a year of retraining: its task, and what it makes of the decisions and sizes that it finds."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.retraining import drifting_task, year, years_of_decisions
from benchmarks.retraining.kept_weeks import KeptWeeks
from benchmarks.retraining.years_of_decisions import Tally, simulate_year
from rl_training.config.sections import PromotionConfig


def test_the_wind_moves_the_cart_and_an_opposite_action_holds_it() -> None:
    env = gym.make(f"{drifting_task.__name__}:HoldInWind-v0", wind=0.5, gusts=0.0)
    place = float(env.reset(seed=1)[0][0])
    observation, reward, terminated, truncated, _ = env.step(np.array([-0.5], np.float32))
    assert (float(observation[0]), reward) == pytest.approx((place, -abs(place)))
    for _ in range(19):
        assert (terminated, truncated) == (False, False)
        observation, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert float(observation[0]) == pytest.approx(place + 19 * 0.3 * 0.5, rel=1e-5)
    assert (terminated, truncated) == (False, True)


def test_an_interrupted_year_continues_after_the_last_finished_week(tmp_path: Path) -> None:
    kept = KeptWeeks(tmp_path / "year")
    assert kept.restore() == []
    for week in (1, 2):
        kept.home.mkdir(exist_ok=True)
        (kept.home / f"run-{week}").write_text("finished")
        kept.add(week, {"week": week})
    (kept.home / "run-1").write_text("changed in the third week")
    (kept.home / "run-3").write_text("unfinished")
    again = KeptWeeks(tmp_path / "year")
    assert again.restore() == [{"week": 1}, {"week": 2}]
    assert {path.name: path.read_text() for path in again.home.iterdir()} == {"run-1": "finished", "run-2": "finished"}
    again.remove()
    assert KeptWeeks(tmp_path / "year").restore() == []
    assert not again.home.exists()


def test_the_plan_of_a_year_begins_with_that_of_fewer_weeks(tmp_path: Path) -> None:
    few, year_long = (year._plan(weeks, tmp_path, tmp_path, {}) for weeks in (3, year.WEEKS))
    assert few == year_long[:3]
    assert [week.fault for week in few[:2]] == ["none", "none"]


def decision(difference: float, *, promoted: bool, width: float = 0.5, explained: bool = True) -> year.Decision:
    verdict = "PROMOTE" if promoted else "HOLD"
    return year.Decision(1, "none", verdict, "2", "1", difference, 0.0, difference, width, promoted, explained)


def sizes(count: int, growth: int = 100) -> list[dict[str, int]]:
    names = ("bytes", "mlflow_bytes", "prefect_bytes")
    return [
        {**dict.fromkeys(names, 1_000 + growth * week), "run_directories": 3, "versions": 2} for week in range(count)
    ]


def summarize(decisions: list[year.Decision], **changed: Any) -> dict[str, Any]:
    given = {"sizes": sizes(9), "left": [], **changed}
    return year._summarize(decisions, given["sizes"], given["left"])


def test_a_year_holds_if_few_promotions_lower_the_value() -> None:
    # Of 20 candidates that are not better, the gate's rate of 5 % allows four promotions at the 99 % level.
    kept, lowered, better = (
        decision(-0.1, promoted=False),
        decision(-0.1, promoted=True),
        decision(0.1, promoted=True),
    )
    within = summarize([kept] * 16 + [lowered] * 4 + [better] * 5)
    assert (within["lowered"], within["not_better"], within["allowed"], within["holds"]) == (4, 20, 4, True)
    beyond = summarize([kept] * 15 + [lowered] * 5 + [better] * 5)
    assert [name for name, holds in beyond["checks"].items() if not holds] == ["few_promotions_lowered_the_value"]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"decisions": [decision(-0.6, promoted=True)]}, "none_lowered_it_by_more_than_its_interval"),
        ({"decisions": [decision(0.1, promoted=True, explained=False)]}, "every_decision_is_explained"),
        ({"left": ["run 1"]}, "nothing_is_unfinished"),
        ({"sizes": [*sizes(5), *sizes(4, growth=500)]}, "no_growth_is_faster_in_the_second_half"),
        ({"sizes": [*sizes(8), {**sizes(9)[8], "run_directories": 7}]}, "run_directories_are_bounded"),
    ],
)
def test_each_other_fault_is_named(changed: dict[str, Any], fault: str) -> None:
    decisions = [decision(-0.1, promoted=False)] * 100 + changed.pop("decisions", [])
    summary = summarize(decisions, **changed)
    assert [name for name, holds in summary["checks"].items() if not holds] == [fault]


def test_equal_candidates_are_never_better_and_seldom_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(years_of_decisions, "SPREAD", 0.0)
    tally, rng = Tally(), np.random.default_rng(0)
    lowered = simulate_year("normal", rng, tally, PromotionConfig(episodes=20))
    assert (tally.better, tally.not_better) == (0, 52)
    assert lowered == tally.wrongly_promoted <= 7  # the 99 % bound for 52 at 5 %
    assert tally.worst_loss == 0.0


def test_far_better_candidates_are_all_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(years_of_decisions, "SPREAD", 50.0)
    tally, rng = Tally(), np.random.default_rng(0)
    simulate_year("normal", rng, tally, PromotionConfig(episodes=20))
    assert tally.better + tally.not_better == 52
    assert tally.wrongly_promoted == 0
    assert tally.rightly_promoted >= math.floor(0.9 * tally.better)
