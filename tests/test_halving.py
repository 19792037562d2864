"""Successive halving, planned on made-up histories."""

import pytest

from rl_training.errors import ConfigError
from rl_training.sweeps.methods import make_method
from rl_training.sweeps.methods.halving import compute_rungs, count_survivors
from rl_training.sweeps.methods.random_search import draw_point
from tests.made_up_histories import make_sweep, plan_again, play, summarize

HALVING = {"name": "halving", "eta": 3, "rungs": 3}


@pytest.mark.parametrize(
    ("total", "every", "eta", "rungs", "expected"),
    [
        (900, 100, 3, 3, (100, 300, 900)),
        (900, 90, 3, 3, (180, 360, 900)),  # 900 / 9 = 100 and 900 / 3 = 300, rounded up to multiples of 90
        (1_000, 1, 3, 3, (112, 334, 1_000)),
        (1_000, 100, 2, 4, (200, 300, 500, 1_000)),
        (1_000, 400, 2, 2, (800, 1_000)),
        (950, 100, 3, 1, (950,)),
    ],
)
def test_each_rung_is_eta_times_the_one_before_in_complete_evaluations(total, every, eta, rungs, expected) -> None:
    sweep = make_sweep(
        method={"name": "halving", "eta": eta, "rungs": rungs},
        config={"total_timesteps": total, "evaluation": {"every": every}},
    )
    assert compute_rungs(sweep.settings.method, sweep.base) == expected


def test_rungs_that_share_an_evaluation_are_refused() -> None:
    sweep = make_sweep(method=HALVING, config={"evaluation": {"every": 400}})
    message = r"method.rungs: got 3 with eta 3, and the rungs 400, 400, 900 are not apart, .* every 400 of 900"
    with pytest.raises(ConfigError, match=message):
        make_method(sweep)


@pytest.mark.parametrize(("trials", "eta", "expected"), [(9, 3, 3), (10, 3, 4), (3, 3, 1), (1, 3, 1), (2, 2, 1)])
def test_one_trial_in_eta_survives_rounded_up(trials: int, eta: int, expected: int) -> None:
    assert count_survivors(trials, eta) == expected


def test_the_best_of_each_rung_resume_in_rounds() -> None:
    sweep = make_sweep(method=HALVING, trials=9, parallel=4)
    # A higher number is better at the first rung; at the second, trial 6 is best.
    rounds = play(make_method(sweep), lambda step: float(step.trial) if step.until == 100 else float(step.trial == 6))
    assert summarize(rounds) == [
        (100, [0, 1, 2, 3]),
        (100, [4, 5, 6, 7]),
        (100, [8]),
        (300, [6, 7, 8]),
        (900, [6]),
    ]
    for step in (step for each in rounds for step in each.steps):
        assert step.params == draw_point(sweep, step.trial)
        assert (step.seeds, step.phase, step.fork, step.prune_below) == ((5,), "search", None, {})


def test_less_is_better_if_the_metric_is_minimized() -> None:
    sweep = make_sweep(method=HALVING, trials=9, parallel=9, direction="minimize")
    assert summarize(play(make_method(sweep), lambda step: float(step.trial))) == [
        (100, list(range(9))),
        (300, [0, 1, 2]),
        (900, [0]),
    ]


def test_of_equal_trials_the_earlier_ones_survive() -> None:
    sweep = make_sweep(method=HALVING, trials=7, parallel=9, seeds=2)
    rounds = play(make_method(sweep), lambda step: 1.0)
    assert summarize(rounds) == [(100, list(range(7))), (300, [0, 1, 2]), (900, [0])]
    assert {step.seeds for each in rounds for step in each.steps} == {(5, 6)}


def test_failed_trials_never_survive_even_if_too_few_are_left() -> None:
    sweep = make_sweep(method=HALVING, trials=6, parallel=6)
    rounds = play(make_method(sweep), lambda step: -5.0 if step.trial == 4 else "failed")
    assert summarize(rounds) == [(100, list(range(6))), (300, [4]), (900, [4])]
    assert summarize(play(make_method(sweep), lambda step: "failed")) == [(100, list(range(6)))]


def test_a_trial_that_reached_its_return_early_competes_without_training_on() -> None:
    sweep = make_sweep(method=HALVING, trials=6, parallel=6)
    rounds = play(make_method(sweep), lambda step: float(step.trial), early=5)
    assert summarize(rounds) == [(100, list(range(6))), (300, [4])]


def test_the_plan_follows_from_the_complete_rounds_alone() -> None:
    sweep = make_sweep(method=HALVING, trials=9, parallel=2)
    rounds = play(make_method(sweep), lambda step: float(step.trial * 7 % 5))
    assert plan_again(sweep, rounds) == [each.steps for each in rounds]
