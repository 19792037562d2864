"""Grid, random search, TPE and pruning: what is planned from complete rounds."""

import builtins
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config.parsing import merge_overrides
from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep, load_sweep
from rl_training.sweeps.methods import make_method, tpe
from rl_training.sweeps.methods.pruning import compute_bounds
from rl_training.sweeps.methods.tpe import average_evaluations
from rl_training.sweeps.plan import Outcome, Round, RunRecord, Step
from rl_training.sweeps.trial_settings import find_fault

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000, "seed": 10}
SPACE = {
    "learning_rate": {"log_range": [1e-5, 1.0]},
    "gamma": {"range": [0.8, 0.999]},
    "normalize_advantage": {"choice": [True, False]},
    "target_kl": {"log_range": [0.001, 0.1], "when": {"normalize_advantage": True}},
    "epochs": {"log_range": [1, 20]},
    "network.hidden": {"choice": [[8], [16, 16]]},
}
CHOICES = {
    "gamma": {"choice": [0.9, 0.95, 0.99]},
    "normalize_advantage": {"choice": [True, False]},
    "target_kl": {"choice": [0.01, 0.02], "when": {"normalize_advantage": True}},
}


def load(method: str, **changes) -> Sweep:
    given = {"config": BASE, "method": method, "space": CHOICES if method == "grid" else SPACE, "parallel": 3}
    return load_sweep({**given, **changes})


def record(seed: int, evaluations: dict[int, float]) -> RunRecord:
    return RunRecord(seed, "", None, "", "complete", 1_000, evaluations, None)


def score(params) -> float:
    """The negative distance from the best point: a step size of 1e-3 and a gamma of 0.95."""
    return -((math.log10(params["learning_rate"]) + 3) ** 2) - (10 * (params["gamma"] - 0.95)) ** 2


def invent_outcome(step: Step) -> Outcome:
    """An outcome that depends on the point alone; some trials fail or are pruned."""
    number = sum(map(ord, repr(sorted(step.params.items())))) % 97
    state = "failed" if number % 11 == 0 else "pruned" if number % 5 == 0 else "complete"
    runs = tuple(record(seed, {400: number / 2, 800: number + seed}) for seed in step.seeds)
    return Outcome(state, None if state == "failed" else float(number), runs)


def search(sweep: Sweep, outcome=invent_outcome, *, restart: bool = False) -> list[Round]:
    """All rounds of a sweep; with `restart`, each is planned by a method that was made afresh."""
    method, rounds = make_method(sweep), []
    while steps := (make_method(sweep) if restart else method).plan(rounds):
        rounds.append(Round(tuple(steps), tuple(map(outcome, steps))))
    return rounds


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_the_trials_of_a_search_are_numbered_and_train_to_the_end_on_the_same_seeds(method):
    sweep = load(method, trials=10, seeds=2)
    rounds = search(sweep)
    count = 9 if method == "grid" else 10  # three values of gamma with two of target_kl, or none
    assert [len(each.steps) for each in rounds] == [3, 3, 3, 1][: math.ceil(count / 3)]
    steps = [step for each in rounds for step in each.steps]
    assert [step.trial for step in steps] == list(range(count))
    assert {(step.seeds, step.until, step.phase, step.fork) for step in steps} == {((10, 11), 1_000, "search", None)}
    for step in steps:
        assert ("target_kl" in step.params) == step.params["normalize_advantage"]


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**70), parallel=st.integers(1, 7), pruned=st.booleans())
def test_a_search_that_is_interrupted_between_any_rounds_plans_the_same(method, seed, parallel, pruned):
    sweep = load(method, seed=seed, parallel=parallel, trials=15, pruning={"after_trials": 2} if pruned else None)
    assert search(sweep, restart=True) == search(sweep)


def test_a_random_point_depends_on_the_seed_and_the_number_alone():
    points = [[step.params for each in search(load("random", parallel=n)) for step in each.steps] for n in (1, 4)]
    assert points[0] == points[1]
    other = [step.params for each in search(load("random", seed=1)) for step in each.steps]
    assert all(a != b for a, b in zip(points[0], other, strict=True))


def test_steps_of_the_confirmation_are_no_trials_of_the_search():
    sweep = load("random", trials=4)
    rounds = search(sweep)
    confirmation = Round((Step(99, {}, (1,), 1_000, phase="confirmation"),), (Outcome("complete", 1.0, ()),))
    assert make_method(sweep).plan([*rounds[:1], confirmation]) == list(rounds[1].steps)


def test_tpe_finds_better_points_than_random_search():
    """Medians over six seeds of the best of 30 scores. Measured: -0.009 for TPE and -0.090 for random search."""
    space = {key: SPACE[key] for key in ("learning_rate", "gamma")}

    def best(method: str, seed: int) -> float:
        rounds = search(
            load(method, seed=seed, trials=30, space=space), lambda step: Outcome("complete", score(step.params), ())
        )
        return max(score(step.params) for each in rounds for step in each.steps)

    guided, random = (np.median([best(method, seed) for seed in range(6)]) for method in ("tpe", "random"))
    assert guided > random / 2


def test_tpe_minimizes_if_it_is_asked_to():
    space = {"learning_rate": SPACE["learning_rate"]}

    def choose(direction: str, sign: int) -> list:
        sweep = load("tpe", trials=24, space=space, direction=direction)
        rounds = search(sweep, lambda step: Outcome("complete", sign * step.params["learning_rate"], ()))
        return [step.params for each in rounds for step in each.steps]

    assert choose("maximize", 1) == choose("minimize", -1)
    assert choose("maximize", 1) != choose("minimize", 1)


def test_points_of_one_round_of_tpe_differ():
    rounds = search(load("tpe", trials=30, parallel=10))
    for each in rounds:
        assert len({repr(step.params) for step in each.steps}) == len(each.steps)


def test_tpe_does_not_depend_on_the_order_of_sets():
    """Python's hashes of text differ between two processes."""
    program = (
        "from tests.test_sweep_methods import load, search\n"
        "print([step.params for each in search(load('tpe', trials=18)) for step in each.steps])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[step.params for each in search(load('tpe', trials=18)) for step in each.steps]}\n"


def test_tpe_prints_nothing_and_leaves_the_level_of_optunas_log_alone(capfd, recwarn):
    import optuna

    level = optuna.logging.get_verbosity()
    search(load("tpe", trials=12))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert optuna.logging.get_verbosity() == level == logging.INFO


def test_tpe_without_optuna_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "optuna":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        ConfigError, match=r"^method: tpe needs Optuna; install it with: pip install 'rl-training\[optuna\]'$"
    ):
        make_method(load("tpe"))


# A batch may not be larger than the rollout of num_envs * rollout_steps transitions.
TOGETHER = {"num_envs": {"choice": [1, 2]}, "rollout_steps": {"choice": [8, 16]}, "batch_size": {"choice": [8, 16, 32]}}
VALID = [(1, 8, 8), (1, 16, 8), (1, 16, 16), (2, 8, 8), (2, 8, 16), (2, 16, 8), (2, 16, 16), (2, 16, 32)]


def test_a_grid_leaves_out_points_that_are_invalid_together():
    rounds = search(load("grid", space=TOGETHER))
    assert [tuple(step.params.values()) for each in rounds for step in each.steps] == VALID


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_points_that_are_invalid_together_are_drawn_again(method):
    rounds = search(load(method, space=TOGETHER, trials=40))
    points = [tuple(step.params[key] for key in TOGETHER) for each in rounds for step in each.steps]
    assert len(points) == 40
    assert set(points) <= set(VALID)


def test_tpe_does_not_insist_on_points_that_are_invalid_together(monkeypatch):
    """A third of the points are invalid. Measured: 92 draws for 40 trials."""
    drawn = []
    monkeypatch.setattr(tpe, "find_fault", lambda sweep, point: drawn.append(point) or find_fault(sweep, point))
    search(load("tpe", space=TOGETHER, trials=40))
    assert 40 < len(drawn) < 200


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_a_space_without_a_valid_point_is_refused(method, monkeypatch):
    for module in ("random_search", "tpe"):
        monkeypatch.setattr(f"rl_training.sweeps.methods.{module}.MOST_DRAWS", 5)
    space = {"rollout_steps": {"choice": [8, 4]}, "batch_size": {"choice": [128, 256]}}
    with pytest.raises(
        ConfigError, match=r"space: each of .* is refused; .*batch_size: got (128|256), expected at most"
    ):
        search(load(method, space=space))


def test_a_sweep_of_one_point_is_a_grid_without_a_space():
    ((step,),) = [each.steps for each in search(load("grid", space={}, seeds=5))]
    assert (step.params, step.seeds) == ({}, (10, 11, 12, 13, 14))


def make_rounds(*values: float, state: str = "complete") -> list[Round]:
    """A round for each value, whose trial has one run with this metric at step 400 and ten times it at step 800."""
    steps = [Step(i, {}, (0,), 1_000) for i in range(len(values))]
    runs = [record(0, {400: value, 800: 10 * value, 1_000: 0.0}) for value in values]
    return [Round((step,), (Outcome(state, 0.0, (run,)),)) for step, run in zip(steps, runs, strict=True)]


def bounds(rounds: list[Round], direction: str = "maximize", **pruning) -> dict[int, float]:
    return compute_bounds(load("random", direction=direction, pruning=pruning).settings, rounds, 1_000)


def test_a_run_must_reach_the_percentile_of_the_complete_rounds_at_each_step():
    """The numbers 1, 2, 4, 8, 16: the median is 4, and the 30th percentile is 2 + 0.2 * (4 - 2)."""
    rounds = make_rounds(16, 1, 8, 2, 4)
    assert bounds(rounds) == {400: 4.0, 800: 40.0}
    assert bounds(rounds, percentile=30) == {400: pytest.approx(2.4), 800: pytest.approx(24.0)}
    assert bounds(make_rounds(16, 1, 8, 2), after_trials=4) == {400: 5.0, 800: 50.0}


def test_the_percentile_is_counted_from_the_highest_value_if_less_is_better():
    """The 30th percentile from above of 1, 2, 4, 8, 16 is the 70th: 4 + 0.8 * (8 - 4)."""
    assert bounds(make_rounds(16, 1, 8, 2, 4), "minimize", percentile=30)[400] == pytest.approx(7.2)


def test_all_runs_that_were_evaluated_at_a_step_count():
    """Of 1, 2, 4, 8, 16 and the two runs 3 and 100 of a pruned trial, the median is 4; of a trial with NaN, nothing."""
    pruned = Outcome("pruned", 0.0, (record(0, {400: 3.0}), record(1, {400: 100.0})))
    failed = Outcome("failed", None, (record(0, {400: math.nan}),))
    steps = (Step(5, {}, (0, 1), 1_000), Step(6, {}, (0,), 1_000))
    assert bounds([*make_rounds(16, 1, 8, 2, 4), Round(steps, (pruned, failed))]) == {400: 4.0, 800: 40.0}


def test_nothing_is_pruned_before_enough_trials_are_complete_and_before_the_first_step():
    five = (16, 1, 8, 2, 4)
    assert bounds(make_rounds(*five), after_trials=6) == {}
    assert bounds(make_rounds(*five, state="pruned")) == {}
    assert bounds(make_rounds(*five), after_steps=401) == {800: 40.0}
    assert bounds(make_rounds(*five), after_steps=400) == {400: 4.0, 800: 40.0}
    assert compute_bounds(load("random").settings, make_rounds(*five), 1_000) == {}


def test_the_confirmation_prunes_nothing():
    step = Step(7, {}, (0,), 1_000, phase="confirmation")
    more = Round((step,), (Outcome("complete", 0.0, (record(0, {400: 1_000.0}),)),))
    assert bounds([*make_rounds(16, 1, 8, 2, 4), *[more] * 5]) == {400: 4.0, 800: 40.0}


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_the_trials_of_a_round_have_its_bounds(method):
    sweep = load(method, pruning={"after_trials": 1, "percentile": 25})
    rounds = make_rounds(1, 3)
    for step in make_method(sweep).plan(rounds):
        assert step.prune_below == {400: 1.5, 800: 15.0}


def test_the_evaluations_of_a_trial_are_the_means_of_its_runs():
    runs = (record(0, {400: 1.0, 800: 3.0}), record(1, {400: 2.0}), record(2, {400: math.inf, 800: 5.0}))
    assert average_evaluations(Outcome("pruned", 0.0, runs)) == {400: 1.5, 800: 4.0}


def test_overrides_of_a_sweep_are_merged_as_those_of_a_config():
    assert (
        load_sweep({"config": BASE, "space": SPACE}, merge_overrides({"trials": 3}, ["trials=4"])).settings.trials == 4
    )
