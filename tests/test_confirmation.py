"""The best points of a search are trained again, beside the base config, on seeds that the search has not used."""

import pytest
from made_up_sweeps import BASE, SPACE, TOTAL, make_sweep, one_round, point, trial

from rl_training.sweeps.confirmation import plan_confirmation
from rl_training.sweeps.plan import Outcome, Round, Step
from rl_training.sweeps.trials import collect_trials, rank_trials, track_best

SEEDS = (1_000_003, 1_000_004)


def confirm(sweep, rounds):
    """Plans rounds until there is none; returns them as they were planned, with made-up outcomes."""
    planned = []
    while steps := plan_confirmation(sweep, [*rounds, *planned]):
        planned.append(Round(tuple(steps), tuple(Outcome("complete", 0.0, ()) for _ in steps)))
    return planned


def settings_of(rounds):
    return [[(step.trial, step.params.get("learning_rate")) for step in one.steps] for one in rounds]


def make(points=2, seeds=2, parallel=2, **settings):
    return make_sweep(confirmation={"points": points, "seeds": seeds}, parallel=parallel, **settings)


def test_the_base_config_and_the_best_points_are_trained_in_rounds_of_the_sweeps_size():
    rounds = [one_round(point(0, 0.01, 5.0), point(1, 0.002, 9.0)), one_round(point(2, 0.003, 7.0))]
    planned = confirm(make(), rounds)
    assert settings_of(planned) == [[(3, None), (4, 0.002)], [(5, 0.003)]]
    assert planned[0].steps == (
        Step(3, {}, SEEDS, TOTAL, "confirmation"),
        Step(4, {"learning_rate": 0.002, "gamma": 0.9}, SEEDS, TOTAL, "confirmation"),
    )


def test_fewer_is_better_when_the_metric_is_minimized():
    rounds = [one_round(point(0, 0.01, 5.0), point(1, 0.002, 9.0), point(2, 0.003, 7.0))]
    assert settings_of(confirm(make(direction="minimize"), rounds)) == [[(3, None), (4, 0.01)], [(5, 0.003)]]


def test_equal_scores_are_in_the_order_of_the_trials():
    rounds = [one_round(*(point(i, rate, 1.0) for i, rate in enumerate([0.005, 0.004, 0.003])))]
    assert settings_of(confirm(make(), rounds)) == [[(3, None), (4, 0.005)], [(5, 0.004)]]


def test_a_point_that_was_tried_twice_is_trained_once():
    rounds = [one_round(point(0, 0.002, 5.0), point(1, 0.002, 9.0), point(2, 0.003, 7.0))]
    assert settings_of(confirm(make(), rounds)) == [[(3, None), (4, 0.002)], [(5, 0.003)]]


def test_a_point_with_the_settings_of_the_base_config_is_not_trained_twice():
    base_gamma = make().base.gamma
    rounds = [one_round(point(0, 0.001, 9.0, gamma=base_gamma), point(1, 0.003, 7.0), point(2, 0.004, 6.0))]
    assert settings_of(confirm(make(), rounds)) == [[(3, None), (4, 0.003)]]


def test_complete_trials_come_first_then_those_that_trained_longest():
    rounds = [
        one_round(
            point(0, 0.002, 99.0, "pruned", 300),
            point(1, 0.003, 50.0, "paused", 500),
            point(2, 0.004, None, "failed"),
            point(3, 0.005, 1.0),
            point(4, 0.006, 60.0, "paused", 500),
        )
    ]
    ranked = rank_trials(collect_trials(rounds, "search"), "maximize")
    assert [one.number for one in ranked] == [3, 4, 1, 0]
    assert settings_of(confirm(make(points=9, parallel=9), rounds)) == [
        [(5, None), (6, 0.005), (7, 0.006), (8, 0.003), (9, 0.002)]
    ]


def test_the_newest_step_of_a_trial_counts():
    """A survivor of a rung is resumed, and a member of a population changes its settings."""
    rounds = [
        one_round(point(0, 0.002, 5.0, "paused", 500), point(1, 0.003, 6.0, "paused", 500)),
        one_round(point(0, 0.004, 2.0)),
    ]
    found = collect_trials(rounds, "search")
    assert [(one.number, one.params["learning_rate"], one.score, one.state) for one in found] == [
        (0, 0.004, 2.0, "complete"),
        (1, 0.003, 6.0, "paused"),
    ]


@pytest.mark.parametrize(
    ("settings", "scores"),
    [({"points": 0}, [1.0]), ({}, [None]), ({}, [])],
    ids=["no points are wanted", "every trial failed", "nothing was tried"],
)
def test_nothing_is_confirmed(settings, scores):
    trials = [point(i, 0.002, score, "complete" if score else "failed") for i, score in enumerate(scores)]
    assert plan_confirmation(make(**settings), [one_round(*trials)]) == []


def test_a_sweep_over_seeds_alone_has_nothing_to_confirm():
    assert plan_confirmation(make(space={}, method="grid"), [one_round(trial(0, {}, 1.0))]) == []


def test_the_seeds_are_valid_beside_the_largest_seed_that_a_retraining_draws():
    sweep = make_sweep(config={**BASE, "seed": 2**32 - 1}, space=SPACE)
    (first, *_), *_ = [plan_confirmation(sweep, [one_round(point(0, 0.002, 1.0))])]
    assert first.seeds == tuple(range(2**32 + 999_999, 2**32 + 1_000_004))
    assert sweep.base.replace(seed=first.seeds[-1]).seed == first.seeds[-1]


def test_the_best_score_so_far_is_that_of_complete_trials():
    rounds = [
        one_round(
            point(0, 0.002, None, "failed"),
            point(1, 0.002, 3.0),
            point(2, 0.003, 9.0, "pruned", 300),
            point(3, 0.004, 2.0),
            point(4, 0.005, 4.0),
        )
    ]
    trials = collect_trials(rounds, "search")
    assert track_best(trials, "maximize") == [(0, None), (1, 3.0), (2, 3.0), (3, 3.0), (4, 4.0)]
    assert track_best(trials, "minimize") == [(0, None), (1, 3.0), (2, 3.0), (3, 2.0), (4, 2.0)]
