"""The result of a sweep is the score on new seeds, beside what the search saw and the base config's score."""

import json

import pytest
from made_up_sweeps import make_sweep, one_round, point, record, trial

from rl_training.sweeps.sweep_result import aggregate_runs, make_result

SEEDS = tuple(range(1_000_003, 1_000_008))


def confirmed(number, params, held_out, state="complete"):
    score = None if state == "failed" else 0.0
    return trial(number, params, score, state, seeds=SEEDS, phase="confirmation", held_out=held_out)


GOOD, LUCKY = {"learning_rate": 0.002, "gamma": 0.9}, {"learning_rate": 0.003, "gamma": 0.9}

SEARCH = one_round(point(0, 0.003, 90.0), point(1, 0.002, 80.0), point(2, 0.005, 1.0))


def make(*confirmation, finished=True, **settings):
    sweep = make_sweep(confirmation={"points": 2, "seeds": 5}, **settings)
    return make_result(sweep, [SEARCH, one_round(*confirmation)], finished=finished)


def test_the_winner_is_the_best_on_new_seeds_and_not_the_best_of_the_search():
    result = make(
        confirmed(3, {}, [10, 11, 12, 13, 14]),
        confirmed(4, LUCKY, [20, 21, 22, 23, 90]),
        confirmed(5, GOOD, [40, 41, 45, 46, 47]),
    )
    assert result.winner is not None
    assert result.winner_params == GOOD
    assert (result.winner.search_trial, result.winner.search_score) == (1, 80.0)
    # The lowest and the highest of five scores are left out.
    assert result.winner.summary["iqm"] == pytest.approx(44.0)
    assert result.winner.summary["mean"] == pytest.approx(43.8)
    assert (result.best.number, result.confirmed_metric) == (0, "heldout/return_mean")


def test_the_comparison_with_the_base_config_is_corrected_for_the_number_of_points():
    result = make(
        confirmed(3, {}, [10, 11, 12, 13, 14]),
        confirmed(4, LUCKY, [20, 21, 22, 23, 24]),
        confirmed(5, GOOD, [9, 11.5, 12.5, 13.5, 15]),
    )
    base, lucky, good = result.confirmed
    assert (base.improvement, base.p_value) == (None, None)
    assert (lucky.improvement.value, lucky.improvement.low, lucky.improvement.high) == (1.0, 1.0, 1.0)
    # 2 of the 252 ways to split ten ranks in two are as extreme; twice that for the smaller of two p-values (Holm).
    assert lucky.p_value == pytest.approx(2 * 2 / 252)
    # 0 + 2 + 3 + 4 + 5 of the 25 pairs are won.
    assert good.improvement.value == pytest.approx(14 / 25)
    assert result.winner_params == LUCKY
    assert not any("can't be told" in line for line in result.lines())


def test_a_winner_that_may_be_chance_is_named_with_the_seeds_that_would_tell():
    result = make(confirmed(3, {}, [1, 2, 3, 4, 5]), confirmed(4, GOOD, [1.5, 2.5, 3.5, 4.5, 5.5]))
    # 15 of 25 pairs are won, so 0.1 above one half: (1.960 + 0.842)^2 / (6 * 0.1^2) = 130.8 seeds. The ranks of the
    # winner sum to 30 of 55; 0.69 is the share of the 252 splits that are at least as far from 27.5.
    assert result.lines()[-1] == (
        "the winner can't be told from the base config yet (p = 0.69); about 131 seeds a point would be needed"
    )


def test_fewer_is_better_when_the_metric_is_minimized():
    result = make(
        confirmed(3, {}, [10, 11, 12, 13, 14]),
        confirmed(4, LUCKY, [20, 21, 22, 23, 24]),
        confirmed(5, GOOD, [1, 2, 3, 4, 5]),
        direction="minimize",
    )
    assert result.winner_params == GOOD
    assert [point.improvement.value for point in result.confirmed[1:]] == [0.0, 1.0]
    assert result.best.number == 2


@pytest.mark.parametrize("others", [[20.0] * 5, [30.0] * 5], ids=["worse", "equal"])
def test_the_base_config_wins_unless_a_point_is_better(others):
    result = make(confirmed(3, {}, [30.0] * 5), confirmed(4, LUCKY, others), confirmed(5, GOOD, others))
    assert result.winner_params == {}
    assert "winner: the base config; no point that was trained again is better" in result.lines()


def test_a_point_with_a_failed_run_can_not_win():
    result = make(
        confirmed(3, {}, [10.0] * 5), confirmed(4, LUCKY, [99.0] * 5, "failed"), confirmed(5, GOOD, [20.0] * 5)
    )
    assert result.winner_params == GOOD
    assert "  trial 0: 5 of 5 runs failed; the search saw 90" in result.lines()


def test_the_newest_evaluations_are_compared_if_a_run_has_no_held_out_score():
    runs = [record(seed, float(i)) for i, seed in enumerate(SEEDS)]
    result = make(
        confirmed(3, {}, [10.0] * 5),
        trial(4, LUCKY, 2.0, seeds=SEEDS, phase="confirmation", runs=runs),
        confirmed(5, GOOD, []),
    )
    assert result.confirmed_metric == "eval/return_mean"
    assert [point.scores for point in result.confirmed] == [(0.0,) * 5, (0.0, 1.0, 2.0, 3.0, 4.0), (0.0,) * 5]
    assert result.winner_params == LUCKY


def test_a_stopped_sweep_has_no_winner_and_says_how_it_continues():
    result = make_result(
        make_sweep(), [SEARCH], finished=False, folder="/sweeps/1", continue_with="rl-training sweep FILE"
    )
    assert (result.winner, result.winner_params, result.confirmed) == (None, None, ())
    assert result.lines()[-2:] == [
        "files: /sweeps/1",
        "stopped; no finished run is lost; to continue: rl-training sweep FILE",
    ]
    assert result.lines()[0].endswith(": 3 trials, 3 complete in complete rounds")


def test_without_confirmation_the_best_of_the_search_is_named_as_such():
    result = make_result(make_sweep(confirmation={"points": 0}), [SEARCH], finished=True)
    assert result.winner_params == {"learning_rate": 0.003, "gamma": 0.9}
    assert result.lines()[-1] == (
        "best of the search: trial 0: learning_rate=0.003 gamma=0.9; it was not trained again on new seeds"
    )


def test_the_result_is_json_without_secrets():
    secret = {"env_kwargs.server": "http://me:hush-hush@host"}
    sweep = make_sweep()
    rounds = [one_round(trial(0, secret, 1.0)), one_round(confirmed(1, {}, [1] * 5), confirmed(2, secret, [2] * 5))]
    result = make_result(sweep, rounds, finished=True)
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert "hush-hush" not in text + "".join(result.lines())
    assert json.loads(text)["winner_params"] == {"env_kwargs.server": "http://me:***@host"}


def test_runs_with_the_same_settings_are_summarized():
    runs = [record(i, 1.0, held_out=score) for i, score in enumerate([1.0, 2.0, 4.0, 5.0, 100.0])]
    found = aggregate_runs([*runs, record(5, None, "failed")], "eval/return_mean")
    assert (found["metric"], found["runs"], found["failed"]) == ("heldout/return_mean", 5, 1)
    assert (found["mean"], found["iqm"], found["median"]) == pytest.approx((22.4, 11 / 3, 4.0))
    assert aggregate_runs([record(5, None, "failed")], "eval/return_mean") is None


def test_a_sweep_over_seeds_alone_has_an_aggregate_and_no_winner():
    runs = [record(seed, 1.0, held_out=score) for seed, score in [(3, 1.0), (4, 3.0)]]
    rounds = [one_round(trial(0, {}, 1.0, seeds=(3, 4), runs=runs))]
    result = make_result(make_sweep(space={}, method="grid", seeds=2), rounds, finished=True)
    assert (result.winner, result.best, result.aggregate["mean"]) == (None, None, 2.0)
    lines = result.lines()
    assert lines[0].endswith(", heldout/return_mean of each:")
    assert [line.split()[:3] for line in lines[1:3]] == [["seed", "3:", "1"], ["seed", "4:", "3"]]
    assert lines[3] == "interquartile mean [95 % interval]: 2 [1, 3] (2 runs, mean 2)"
