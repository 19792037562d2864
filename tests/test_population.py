"""Population-based training, planned on made-up histories."""

from typing import Any

import numpy as np
import pytest

from rl_training.errors import ConfigError
from rl_training.sweeps.engines.engine import ForkOrigin
from rl_training.sweeps.forks import trace_forks
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.methods import make_method
from rl_training.sweeps.methods.exploring import explore, move_to_neighbor, scale
from rl_training.sweeps.methods.population import compute_generations
from rl_training.sweeps.methods.random_search import draw_point
from rl_training.sweeps.plan import Fork, Round, Step
from rl_training.sweeps.segments import make_trial_uid
from rl_training.sweeps.space import Choices, Interval
from tests.made_up_histories import make_sweep, plan_again, play, summarize

POPULATION = {"name": "population", "interval": 300, "quantile": 0.25}


def list_forks(rounds: list[Round]) -> list[tuple[int, int, Fork]]:
    """Returns the end, the trial and the origin of each step that begins with a fork."""
    steps = [step for each in rounds for step in each.steps]
    return [(step.until, step.trial, step.fork) for step in steps if step.fork is not None]


@pytest.mark.parametrize(
    ("interval", "every", "expected"),
    [
        (300, 100, (300, 600, 900)),
        (250, 100, (300, 600, 900)),  # rounded up to complete evaluations
        (400, 100, (400, 800, 900)),
        (None, 100, (100, 200, 300, 400, 500, 600, 700, 800, 900)),  # a tenth is 90
        (900, 100, (900,)),
    ],
)
def test_members_are_compared_at_complete_evaluations(interval: int | None, every: int, expected: tuple[int]) -> None:
    method = {"name": "population", "interval": interval}
    assert compute_generations(make_sweep(method=method, config={"evaluation": {"every": every}})) == expected


def test_more_generations_than_could_be_listed_are_refused() -> None:
    base = {"total_timesteps": 10**9, "evaluation": {"every": 1}}
    with pytest.raises(ConfigError, match=r"method.interval: got 1, which makes 1,000,000,000 generations"):
        compute_generations(make_sweep(method={"name": "population", "interval": 1}, config=base))


def test_the_worst_quarter_is_replaced_by_forks_of_the_best_quarter() -> None:
    sweep = make_sweep(method=POPULATION, trials=4, parallel=3)
    rounds = play(make_method(sweep), lambda step: float(step.trial))
    assert summarize(rounds) == [(end, trials) for end in (300, 600, 900) for trials in ([0, 1, 2], [3])]
    assert list_forks(rounds) == [(600, 0, Fork(3, 300)), (900, 0, Fork(3, 600))]
    params = {(step.trial, step.until): step.params for each in rounds for step in each.steps}
    for trial in (1, 2, 3):
        assert {end: params[trial, end] for end in (300, 600, 900)} == dict.fromkeys(
            (300, 600, 900), draw_point(sweep, trial)
        )
    assert params[0, 300] == draw_point(sweep, 0)
    rate, gamma = draw_point(sweep, 3)["learning_rate"], draw_point(sweep, 3)["gamma"]
    assert params[0, 600] == pytest.approx({"learning_rate": rate * 0.8, "gamma": 1 - (1 - gamma) * 0.8}, rel=1e-5)
    assert {step.seeds for each in rounds for step in each.steps} == {(5,)}


def test_less_is_better_if_the_metric_is_minimized() -> None:
    sweep = make_sweep(method=POPULATION, trials=4, parallel=4, direction="minimize")
    rounds = play(make_method(sweep), lambda step: float(step.trial))
    assert list_forks(rounds) == [(600, 3, Fork(0, 300)), (900, 3, Fork(0, 600))]


def test_of_equal_members_the_last_is_replaced_by_the_first() -> None:
    sweep = make_sweep(method=POPULATION, trials=5, parallel=5)
    assert list_forks(play(make_method(sweep), lambda step: 1.0)) == [(600, 4, Fork(0, 300)), (900, 4, Fork(0, 600))]


def test_forks_are_drawn_from_all_of_the_best() -> None:
    sweep = make_sweep(method={**POPULATION, "interval": 100, "quantile": 0.5}, trials=8, parallel=8)
    forks = list_forks(play(make_method(sweep), lambda step: float(step.trial)))
    assert len(forks) == 8 * 4
    assert {trial for _, trial, _ in forks} == {0, 1, 2, 3}
    assert {fork.trial for _, _, fork in forks} == {4, 5, 6, 7}


def test_failed_members_are_replaced_beyond_the_quantile() -> None:
    sweep = make_sweep(method=POPULATION, trials=4, parallel=4)
    rounds = play(make_method(sweep), lambda step: "failed" if step.until == 300 and step.trial != 1 else 1.0)
    assert [(trial, fork) for until, trial, fork in list_forks(rounds) if until == 600] == [
        (trial, Fork(1, 300)) for trial in (0, 2, 3)
    ]


def test_pruned_members_are_replaced_too() -> None:
    sweep = make_sweep(method=POPULATION, trials=8, parallel=8)
    rounds = play(
        make_method(sweep), lambda step: "pruned" if step.until == 300 and step.trial < 3 else float(step.trial)
    )
    forks = [(trial, fork.trial) for until, trial, fork in list_forks(rounds) if until == 600]
    assert {trial for trial, _ in forks} == {0, 1, 2}
    assert {origin for _, origin in forks} <= {6, 7}


def test_the_best_that_have_failed_are_no_origins() -> None:
    sweep = make_sweep(method={**POPULATION, "quantile": 0.5}, trials=4, parallel=4)
    rounds = play(
        make_method(sweep), lambda step: "failed" if step.trial in (2, 3) and step.until == 600 else float(step.trial)
    )
    assert {fork.trial for until, _, fork in list_forks(rounds) if until == 900} <= {0, 1}
    assert {trial for until, trial, _ in list_forks(rounds) if until == 900} == {2, 3}


def test_a_population_that_has_failed_ends() -> None:
    sweep = make_sweep(method=POPULATION, trials=3, parallel=3)
    rounds = play(make_method(sweep), lambda step: "failed" if step.until == 600 else 1.0)
    assert summarize(rounds) == [(300, [0, 1, 2]), (600, [0, 1, 2])]


def test_a_member_that_reached_its_return_stays_as_it_is() -> None:
    sweep = make_sweep(method=POPULATION, trials=4, parallel=4)
    rounds = play(make_method(sweep), lambda step: float(step.trial), early=3)
    assert summarize(rounds) == [(300, [0, 1, 2, 3]), (600, [0, 1, 2]), (900, [0, 1, 2])]
    assert list_forks(rounds) == [(600, 0, Fork(3, 300)), (900, 0, Fork(3, 300))]


def test_the_plan_follows_from_the_complete_rounds_and_the_seed_alone() -> None:
    sweep = make_sweep(method=POPULATION, trials=5, parallel=2)
    rounds = play(make_method(sweep), lambda step: float(step.trial * 7 % 5))
    assert plan_again(sweep, rounds) == [each.steps for each in rounds]
    other = make_sweep(method=POPULATION, trials=5, parallel=2, seed=1)
    assert play(make_method(other), lambda step: float(step.trial * 7 % 5)) != rounds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 1}, "trials: got 1, expected 2 or more members of the population"),
        (
            {"seeds": 3},
            "seeds: got 3, expected 1, because a member of a population is a single run; raise trials instead",
        ),
        ({"space": {"network.hidden": {"choice": [[8], [16]]}}}, "space.network.hidden: a fork of a population .* tpe"),
        ({"space": {"rollout_steps": {"range": [25, 100]}}}, "space.rollout_steps: a fork of a population .* tpe"),
    ],
)
def test_what_does_not_fit_a_population_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sweep(**{"method": POPULATION, "trials": 4, **settings})


@pytest.mark.parametrize("weights", [[0.1, "auto"], ["auto", 0.2]])
def test_a_weight_that_one_member_learns_and_another_fixes_is_refused(weights: list[Any]) -> None:
    config = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 3_000, "num_envs": 1}
    sweep = {"method": POPULATION, "trials": 4, "config": config}
    with pytest.raises(ConfigError, match=r"space.entropy_coef: a fork of a population continues the state of another"):
        load_sweep({**sweep, "space": {"entropy_coef": {"choice": weights}}})
    assert load_sweep({**sweep, "space": {"entropy_coef": {"choice": [0.1, 0.2]}}}).space.dimensions


FLOAT = Interval(1e-4, 1e-2, whole=False, log=True)
WHOLE = Interval(1, 10, whole=True, log=False)
DISCOUNT = Interval(0.9, 0.999, whole=False, log=False)


@pytest.mark.parametrize(
    ("key", "interval", "value", "factor", "expected"),
    [
        ("learning_rate", FLOAT, 0.001, 1.2, 0.0012),
        ("learning_rate", FLOAT, 0.001, 0.8, 0.0008),
        ("learning_rate", FLOAT, 0.009, 1.2, 0.01),  # 0.0108 is above the range
        ("learning_rate", FLOAT, 0.00011, 0.8, 0.0001),
        ("epochs", WHOLE, 5, 1.2, 6),
        ("epochs", WHOLE, 2, 1.2, 3),  # 2.4, rounded away from 2
        ("epochs", WHOLE, 2, 0.8, 1),  # 1.6
        ("epochs", WHOLE, 1, 0.8, 1),  # 0 is below the range
        ("epochs", WHOLE, 10, 1.2, 10),
        ("gamma", DISCOUNT, 0.99, 0.8, 0.992),  # the distance to one is 0.01, then 0.008 or 0.012
        ("gamma", DISCOUNT, 0.99, 1.2, 0.988),
        ("gae_lambda", DISCOUNT, 0.999, 0.8, 0.999),
    ],
)
def test_a_number_is_scaled_within_its_range(
    key: str, interval: Interval, value: float, factor: float, expected: float
) -> None:
    scaled = scale(key, interval, value, factor)
    assert scaled == pytest.approx(expected, rel=1e-12)
    assert isinstance(scaled, int) == interval.whole


def test_a_choice_moves_to_a_neighbor() -> None:
    choices, rng = Choices((32, 64, 128, 256)), np.random.default_rng(0)
    moves = {value: {move_to_neighbor(choices, value, rng) for _ in range(50)} for value in choices.values}
    assert moves == {32: {64}, 64: {32, 128}, 128: {64, 256}, 256: {128}}
    assert move_to_neighbor(Choices((True,)), True, rng) is True


def test_a_quarter_of_the_settings_is_drawn_again() -> None:
    sweep = make_sweep(method=POPULATION, trials=4, space={"learning_rate": {"log_range": [1e-6, 1.0]}})
    rng = np.random.default_rng(3)
    rates = [explore(sweep, {"learning_rate": 0.001}, rng)["learning_rate"] for _ in range(2_000)]
    counts = {near: sum(rate == pytest.approx(near) for rate in rates) for near in (0.0008, 0.0012)}
    # 2,000 * 0.375 = 750 of each, with a standard deviation of 22
    assert all(abs(count - 750) < 100 for count in counts.values())
    assert all(1e-6 <= rate <= 1.0 for rate in rates)


def test_a_setting_appears_and_disappears_with_its_condition() -> None:
    space = {
        "learning_rate_schedule": {"choice": ["constant", "linear"]},
        "value_clip": {"range": [0.1, 0.3], "when": {"learning_rate_schedule": "linear"}},
    }
    sweep, rng = make_sweep(method=POPULATION, trials=4, space=space), np.random.default_rng(0)
    points = [explore(sweep, {"learning_rate_schedule": "constant"}, rng) for _ in range(50)]
    points += [explore(sweep, {"learning_rate_schedule": "linear", "value_clip": 0.2}, rng) for _ in range(50)]
    assert {point["learning_rate_schedule"] for point in points} == {"constant", "linear"}
    assert all(("value_clip" in point) == (point["learning_rate_schedule"] == "linear") for point in points)


def test_settings_that_are_refused_together_are_drawn_again() -> None:
    config = {"rollout_steps": 8, "num_envs": 2, "batch_size": 16}
    sweep = make_sweep(method=POPULATION, trials=4, config=config, space={"batch_size": {"choice": [8, 16]}})
    rng = np.random.default_rng(0)
    assert {explore(sweep, {"batch_size": 8}, rng)["batch_size"] for _ in range(20)} == {8, 16}


def test_the_lineage_of_a_fork_names_all_runs_that_it_descends_from() -> None:
    a, b, c = {"gamma": 0.9}, {"gamma": 0.92}, {"gamma": 0.94}
    steps = [
        Step(0, a, (5,), until=300),
        Step(1, b, (5,), until=300),
        Step(0, c, (5,), until=600, fork=Fork(1, 300)),
        Step(1, b, (5,), until=600),
        Step(0, c, (5,), until=900),
        Step(1, a, (5,), until=900, fork=Fork(0, 600)),
    ]
    first = {"trial": 1, "run_uid": make_trial_uid("s", "t0001-s5"), "num_timesteps": 300, "params": b}
    second = {"trial": 0, "run_uid": make_trial_uid("s", "t0000-s5-g1"), "num_timesteps": 600, "params": c}
    found = trace_forks("s", steps[:4])
    assert (found[0].generation, found[0].origin) == (1, ForkOrigin("t0001-s5", 300, (first,)))
    assert (found[1].generation, found[1].origin) == (0, None)
    found = trace_forks("s", steps)
    assert (found[0].generation, found[0].origin) == (1, ForkOrigin("t0001-s5", 300, (first,)))
    assert (found[1].generation, found[1].origin) == (1, ForkOrigin("t0000-s5-g1", 600, (first, second)))
