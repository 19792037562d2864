"""The pictures of a sweep show every trial once, on scales that fit its settings; and the importance of settings."""

import math

import numpy as np
import pytest
from made_up_sweeps import make_sweep, one_round, point, record, trial

from rl_training.sweeps.page.importance import LEAST_TRIALS, NO_OPTUNA, compute_importance
from rl_training.sweeps.page.pictures import draw_history, draw_importance, draw_parallel_coordinates, save_png
from rl_training.sweeps.trials import collect_trials

SPACE = {
    "learning_rate": {"log_range": [1e-4, 1e-2]},
    "gamma": {"range": [0.9, 1.0]},
    "network.hidden": {"choice": [[64, 64], [128, 128], [256, 256]]},
    "normalization.observation": {"choice": [True, False]},
    "normalization.clip": {"range": [5.0, 10.0], "when": {"normalization.observation": True}},
}


def trials_of(*made):
    return collect_trials([one_round(*made)], "search")


TRIALS = trials_of(
    trial(
        0,
        {
            "learning_rate": 1e-3,
            "gamma": 0.95,
            "network.hidden": [128, 128],
            "normalization.observation": True,
            "normalization.clip": 10.0,
        },
        10.0,
    ),
    trial(
        1, {"learning_rate": 1e-2, "gamma": 0.9, "network.hidden": [256, 256], "normalization.observation": False}, 30.0
    ),
    trial(
        2,
        {"learning_rate": 1e-4, "gamma": 1.0, "network.hidden": [64, 64], "normalization.observation": False},
        None,
        "failed",
    ),
    trial(
        3,
        {"learning_rate": 1e-4, "gamma": 1.0, "network.hidden": [64, 64], "normalization.observation": False},
        20.0,
        "pruned",
        300,
    ),
)


def test_the_history_shows_each_trial_with_its_state_and_the_best_so_far():
    (axes,) = draw_history(TRIALS, "eval/return_mean", "maximize").axes
    points = {one.get_label(): one.get_offsets().tolist() for one in axes.collections}
    assert points == {"complete": [[0, 10], [1, 30]], "pruned": [[3, 20]], "failed": [[2, 0.02]]}
    (best,) = axes.lines
    assert best.get_xydata().tolist() == [[0, 10], [1, 30], [2, 30], [3, 30]]


def test_parallel_coordinates_have_an_axis_for_each_setting_and_a_line_for_each_scored_trial():
    sweep = make_sweep(space=SPACE)
    figure = draw_parallel_coordinates(sweep.space.dimensions, TRIALS, "eval/return_mean", "maximize")
    host, *axes = figure.axes
    assert len(axes) == len(SPACE) + 1
    assert [axis.get_yscale() for axis in axes] == ["log", *["linear"] * 5]
    assert [axis.get_ylim() for axis in axes] == [(1e-4, 1e-2), (0.9, 1.0), (0, 2), (0, 1), (5.0, 10.0), (10.0, 30.0)]
    assert [label.get_text() for label in axes[2].get_yticklabels()] == ["[64, 64]", "[128, 128]", "[256, 256]"]
    lines = [line.get_ydata() for line in host.lines]
    nan = math.nan
    np.testing.assert_allclose(
        lines, [[0.5, 0.5, 0.5, 0, 1, 0], [0, 1, 0, 1, nan, 0.5], [1, 0, 1, 1, nan, 1]], atol=1e-12
    )
    colours = [line.get_color() for line in host.lines]
    assert len(set(colours)) == 3


def test_the_best_line_is_on_top_when_the_metric_is_minimized():
    figure = draw_parallel_coordinates(
        make_sweep().space.dimensions, trials_of(point(0, 0.001, 1.0), point(1, 0.002, 9.0)), "loss", "minimize"
    )
    assert [line.get_ydata()[-1] for line in figure.axes[0].lines] == [1.0, 0.0]


@pytest.mark.parametrize("made", [(), (point(0, 0.001, None, "failed"),), (point(0, 0.001, 1.0), point(1, 0.001, 1.0))])
def test_pictures_can_be_drawn_of_few_and_equal_trials(made):
    trials = trials_of(*made)
    for figure in (
        draw_history(trials, "eval/return_mean", "maximize"),
        draw_parallel_coordinates(make_sweep().space.dimensions, trials, "eval/return_mean", "maximize"),
    ):
        assert save_png(figure).startswith(b"\x89PNG")


def test_the_importance_is_a_bar_for_each_setting_with_the_largest_on_top():
    (axes,) = draw_importance({"learning_rate": 0.8, "gamma": 0.2}).axes
    assert [bar.get_width() for bar in axes.patches] == [0.8, 0.2]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["learning_rate", "gamma"]
    assert axes.yaxis_inverted()


def score_by_rate(count=40, **settings):
    """Returns a sweep and trials whose score depends on the learning rate alone."""
    sweep = make_sweep(space=SPACE, **settings)
    rng = np.random.default_rng(0)
    points = [sweep.space.draw(rng) for _ in range(count)]
    return sweep, [trial(i, one, -abs(math.log10(one["learning_rate"]) + 3)) for i, one in enumerate(points)]


def test_the_setting_that_decides_the_score_is_the_most_important():
    sweep, made = score_by_rate()
    found = compute_importance(sweep, trials_of(*made))
    assert next(iter(found.shares)) == "learning_rate"
    assert found.shares["learning_rate"] > 0.5
    assert set(found.shares) == set(SPACE)
    assert math.fsum(found.shares.values()) == pytest.approx(1.0)
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)
    assert (found.trials, found.num_timesteps) == (40, None)
    assert found.explanation == "How much each setting decides whether a trial is among the best 5 of 40 at the end."
    assert compute_importance(sweep, trials_of(*made)) == found


def test_the_importance_does_not_depend_on_the_direction_alone():
    sweep, made = score_by_rate()
    minimized, _ = score_by_rate(direction="minimize")
    negated = [trial(step.trial, step.params, -outcome.score) for step, outcome in made]
    assert (
        compute_importance(minimized, trials_of(*negated)).shares == compute_importance(sweep, trials_of(*made)).shares
    )


def test_trials_that_were_stopped_are_compared_at_a_step_that_half_of_them_reached():
    """Successive halving: 12 trials, of which 4 train to step 300 and 1 to step 1,000."""
    sweep = make_sweep()
    made = []
    for i in range(12):
        steps = 1_000 if i == 0 else 300 if i < 4 else 100
        evaluations = {step: float(step + i) for step in (100, 300, 1_000) if step <= steps}
        run = record(3, None, "complete" if i == 0 else "paused", steps)
        run = type(run)(**{**vars(run), "evaluations": evaluations})
        made.append(point(i, 1e-4 * (i + 1), float(steps + i), run.state, steps, runs=[run]))
    found = compute_importance(sweep, trials_of(*made))
    assert (found.trials, found.num_timesteps) == (12, 100)
    assert found.explanation.endswith("among the best 5 of 12 at step 100.")


@pytest.mark.parametrize(
    ("count", "score", "settings", "expected"),
    [
        (LEAST_TRIALS - 1, float, {}, "7 trials have a score to compare, and the importance of settings needs 8."),
        (9, lambda i: 1.0, {}, "All trials have the same score, so no setting decides it."),
    ],
)
def test_a_sentence_says_why_there_is_no_importance(count, score, settings, expected):
    made = [point(i, 0.001 + i / 10_000, score(i)) for i in range(count)]
    found = compute_importance(make_sweep(**settings), trials_of(*made))
    assert (found.shares, found.explanation) == ({}, expected)


def test_without_optuna_a_sentence_names_the_extra(monkeypatch):
    sweep, made = score_by_rate(9)
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    found = compute_importance(sweep, trials_of(*made))
    assert (found.shares, found.explanation) == ({}, NO_OPTUNA)
