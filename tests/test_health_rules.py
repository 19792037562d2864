"""The rules by which training counts as gone bad: truth tables over made-up histories."""

import json
import math
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.errors import CheckpointError
from rl_training.runs.health_warnings import KINDS
from rl_training.runtime.health.advice import ADVICE, give_advice
from rl_training.runtime.health.exploration import measure_exploration
from rl_training.runtime.health.history import POINTS, Evaluation, History, Point, Returns
from rl_training.runtime.health.rules import (
    find_collapsed_exploration,
    find_diverged_values,
    find_equal_returns,
    find_fallen_evaluation,
    find_gain,
    find_unexplained_variance,
    plausible_value,
)

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
TOTAL = 1_000


def evaluations(*means: float, std: float = 0.0, half_width: float = 0.0) -> list[Evaluation]:
    """Returns evaluations at each tenth of 1,000 steps."""
    return [Evaluation(100 * i, mean, std, half_width) for i, mean in enumerate(means, 1)]


def points(*values: float) -> list[Point]:
    """Returns points at each twentieth of 1,000 steps."""
    return [Point(50 * i, value) for i, value in enumerate(values, 1)]


def returns(low: float, high: float, last: int = 1_000, episodes: int = 100) -> Returns:
    return Returns(low, 10, last, low, high, episodes)


@pytest.mark.parametrize(
    ("means", "start", "std", "expected"),
    [
        ([0, 100, 90], None, 0.0, (0, 90)),  # the lower of the best two in a row
        ([0, 100, 10, 12], None, 0.0, (0, 10)),  # 100 was reached once alone
        ([50, 100, 100], 20.0, 0.0, (20, 100)),  # training began lower than the first evaluation
        ([50, 100, 100], 60.0, 0.0, (50, 100)),
        ([50, 100, 100], None, 50.0, None),  # no larger than the spread
        ([50, 100, 100], None, 49.0, (50, 100)),
        ([100, 100, 100], None, 0.0, None),
        ([100], 0.0, 0.0, None),  # a single evaluation
    ],
)
def test_the_gain_is_from_the_beginning_to_the_best_that_two_evaluations_in_a_row_reached(means, start, std, expected):
    gain = find_gain(evaluations(*means, std=std), start)
    assert (None if gain is None else (gain.base, gain.best.mean)) == expected


@pytest.mark.parametrize(
    ("means", "since"),
    [
        ([0, 100, 100, 49, 49, 49, 49], 400),  # four evaluations, 300 of 1,000 steps
        ([0, 100, 100, 49, 49, 49], None),  # 200 steps are less than a quarter
        ([0, 100, 100, 51, 51, 51, 51], None),  # half of the gain is kept
        ([0, 100, 100, 49, 49, 51, 49, 49], None),  # not in a row
        ([0, 100, 100, 49, 49, 49, 49, 90], None),  # well again
        ([0, 100, 40, 40, 40, 40, 40, 40], None),  # one lucky evaluation
        ([-1000, -200, -200, -700, -700, -700, -900], 400),  # returns may be negative
        ([100, 10, 10, 10, 10, 10, 10], None),  # the first is no gain
        ([0, 0, 0, 0, 0, 0, 0], None),
    ],
)
def test_an_evaluation_has_fallen_when_half_of_the_gain_is_lost_for_a_quarter_of_the_run(means, since):
    for scale, offset in ((1.0, 0.0), (1e-3, 7.0), (1e5, -1e6)):  # no scale and no origin matters
        history = evaluations(*(scale * mean + offset for mean in means))
        found = find_fallen_evaluation(history, None, TOTAL)
        assert (None if found is None else found.since) == since


def test_a_fall_within_the_intervals_is_none():
    means = [0, 100, 100, 40, 40, 40, 40]
    assert find_fallen_evaluation(evaluations(*means, half_width=29.0), None, TOTAL) is not None
    assert find_fallen_evaluation(evaluations(*means, half_width=30.0), None, TOTAL) is None


def test_a_fall_is_described_with_its_numbers():
    found = find_fallen_evaluation(evaluations(0, 100, 90, 30, 20, 10, 40), 5.0, TOTAL)
    assert found == (
        400,
        "the mean return of 4 evaluations in a row is 10 to 40, more than half of the way back from 90 (reached by "
        "step 300) to 0 at the beginning",
    )


@pytest.mark.parametrize("uses_start", [True, False])
def test_no_training_of_the_learning_results_has_a_warning_about_its_evaluations(uses_start):
    """The recorded curves have no intervals; intervals of width 0 make the rule the more alert."""
    trainings = 0
    for path in sorted(RESULTS.glob("learning-*.json")):
        record = json.loads(path.read_text())
        total = record["settings"]["total_timesteps"]
        for seed in record["seeds"]:
            history = [Evaluation(step, mean, 0.0, 0.0) for step, mean in seed["evaluation_returns"]]
            start = seed["training_returns"][0][1] if uses_start else None
            for count in range(1, len(history) + 1):
                found = find_fallen_evaluation(history[:count], start, total)
                assert found is None, f"{path.name}, seed {seed['seed']}: {found}"
            trainings += 1
    assert trainings >= 50


@pytest.mark.parametrize(
    ("shares", "means", "since"),
    [
        ([1.0, 0.009, 0.009, 0.009, 0.009, 0.009], [0, 0], 100),
        ([1.0, 0.009, 0.009, 0.009, 0.009], [0, 0], None),  # four points
        ([1.0, 0.009, 0.009, 0.009, 0.009, 0.011], [0, 0], None),
        ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0, 0], 100),
        ([1.0, 0.009, 0.009, 0.009, 0.009, 0.009], [0, 100, 100], None),  # certain, because it has learned
        ([1.0, 0.009, 0.009, 0.009, 0.009, 0.009], [0, 100, 100, 40], 100),  # and forgotten again
        ([1.0, 0.009, 0.009, 0.009, 0.009, 0.009], [0], None),  # one evaluation shows nothing
        ([], [0, 0], None),
    ],
)
def test_exploration_has_collapsed_when_it_stays_below_a_hundredth_before_anything_is_learned(shares, means, since):
    found = find_collapsed_exploration(points(*shares), evaluations(*means), None, TOTAL)
    assert (None if found is None else found.since) == since


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ([-0.5] * 30, 150),  # points at 10, 20, ..., 300 of 500 steps: three tenths of the run begin at 150
        ([-0.5] * 29 + [0.1], 150),  # 15 of 16 are negative
        ([-0.5] * 28 + [0.1, 0.1], None),  # 14 of 16
        ([0.5] * 30, None),
        ([0.0] * 30, None),
        ([0.5] * 14 + [-0.1] * 16, 150),
        ([-0.5] * 15, None),  # the history is not as long yet
    ],
)
def test_values_are_worse_than_a_constant_when_nine_of_ten_are_negative_for_long(values, since):
    history = [Point(10 * i, value) for i, value in enumerate(values, 1)]
    found = find_unexplained_variance(history, [], returns(0.0, 1.0), 500)
    assert (None if found is None else found.since) == since
    assert find_unexplained_variance(history, [], returns(1.0, 1.0), 500) is None  # nothing to explain


@pytest.mark.parametrize(
    ("losses", "is_found"),
    [
        ([8.0] * 50, True),
        ([8.0] * 35 + [0.008] * 15, True),  # a thousandth
        ([8.0] * 35 + [0.007] * 15, False),  # a solved task, whose returns hardly differ
        ([8.0] * 35 + [0.007] * 9 + [9.0] * 6, False),  # 9 of the 16 points from step 350 on
        ([8.0] * 35 + [0.007] * 7 + [9.0] * 8, True),
        ([0.0] * 50, True),  # they were never large, so nothing shows that they have become small
        ([0.01] + [8.0] * 49, True),
    ],
)
def test_values_whose_errors_have_become_negligible_are_good_enough(losses, is_found):
    history, errors = ([Point(10 * i, value) for i, value in enumerate(list_, 1)] for list_ in ([-1.0] * 50, losses))
    assert (find_unexplained_variance(history, errors, returns(0.0, 1.0), 500) is not None) is is_found


@pytest.mark.parametrize(
    ("values", "largest", "since"),
    [
        ([5, 101, 102, 103, 104, 105], 10.0, 100),
        ([5, -101, -102, -103, -104, -105], 10.0, 100),
        ([5, 101, 102, 103, 104], 10.0, None),  # four points
        ([5, 100, 100, 100, 100, 100], 10.0, None),  # ten times are not more than ten times
        ([5, 105, 104, 103, 102, 101], 10.0, None),  # they shrink
        ([5, 101, 102, 103, 104, 105], 11.0, None),
        ([0, 9, 9, 9, 9, 9, 9], 0.0, None),  # rewards of 0, values of a new network
        ([0, 11, 12, 13, 14, 15, 16], 0.0, 100),
        ([], 0.0, None),
    ],
)
def test_q_values_have_diverged_when_they_exceed_ten_times_the_plausible(values, largest, since):
    found = find_diverged_values(points(*values), largest, TOTAL)
    assert (None if found is None else found.since) == since


def test_the_plausible_value_is_the_return_or_its_mean_reward_without_an_end():
    assert plausible_value(-200.0, 200.0, 0.9) == 200.0
    assert plausible_value(-200.0, 200.0, 0.999) == pytest.approx(1_000.0)  # one a step, 1 / (1 - gamma) steps
    assert plausible_value(50.0, 200.0, 1.0) == 50.0
    assert plausible_value(0.0, 0.0, 0.99) == 0.0


@pytest.mark.parametrize(
    ("seen", "means", "found"),
    [
        (returns(-200.0, -200.0), [-200.0, -200.0], True),
        (returns(-200.0, -200.0), [], True),
        (returns(-200.0, -199.9), [-200.0, -200.0], False),
        (returns(-200.0, -200.0), [-200.0, -150.0], False),
        (returns(-200.0, -200.0, last=300), [-200.0], False),  # a third of the run is not over
        (returns(-200.0, -200.0, episodes=19), [-200.0], False),
        (returns(0.0, 0.0), [0.0], True),
        (returns(0.1, 0.1 + 1e-12), [0.1], True),  # a mean's rounding
        (None, [], False),
    ],
)
def test_returns_never_differ_when_all_of_a_third_of_the_run_are_equal(seen, means, found):
    assert (find_equal_returns(seen, evaluations(*means), TOTAL) is not None) is found


def test_different_returns_within_an_evaluation_differ():
    assert find_equal_returns(returns(5.0, 5.0), evaluations(5.0, 5.0, std=1.0), TOTAL) is None


BOX = gym.spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("config", "space", "metrics", "share"),
    [
        (PPOConfig, gym.spaces.Discrete(4), {"train/entropy": math.log(4) / 2}, 0.5),
        (PPOConfig, gym.spaces.MultiDiscrete([2, 8]), {"train/entropy": math.log(16) / 4}, 0.25),
        (PPOConfig, gym.spaces.MultiBinary(3), {"train/entropy": 3 * math.log(2)}, 1.0),
        (PPOConfig, gym.spaces.Discrete(1), {"train/entropy": 0.0}, None),
        (PPOConfig, BOX, {"train/entropy": -3.0, "train/std": 0.1}, 0.1),
        (SACConfig, BOX, {"train/entropy": 2 * math.log(2)}, 1.0),  # uniform in [-1, 1]
        (SACConfig, BOX, {"train/entropy": -2.0}, math.exp(-1.0) / 2),
        (SACConfig, BOX, {}, None),
        (TQCConfig, BOX, {"train/entropy": -2.0}, math.exp(-1.0) / 2),
        (TD3Config, BOX, {"train/actor_loss": 1.0}, None),  # its noise has a fixed size
        (DQNConfig, gym.spaces.Discrete(4), {"train/q_mean": 1.0}, None),
    ],
)
def test_exploration_is_a_share_of_the_most_that_a_policy_could_explore(config, space, metrics, share):
    measured = measure_exploration(config(env_id="X-v0", total_timesteps=10_000), space, metrics)
    assert measured == (None if share is None else pytest.approx(share))


def test_the_initial_deviation_of_ppo_counts_as_full_exploration():
    config = PPOConfig(env_id="X-v0", total_timesteps=1_000, network={"initial_log_std": -2.0})
    assert measure_exploration(config, BOX, {"train/std": math.exp(-2.0)}) == pytest.approx(1.0)


def test_a_history_keeps_one_point_per_bucket_and_returns_from_its_state():
    history = History(10 * POINTS)
    for step in range(1, 10 * POINTS + 1):
        history.add_point("train/q_mean", step, float(step))
        history.add_evaluation(Evaluation(step, step / 2, 1.0, 0.5))
    history.add_point("train/q_mean", 10 * POINTS + 10, math.nan)
    history.add_return(5, 3.0, 1)
    history.add_return(6, 4.0, 2)
    history.allow_value(7.0)
    assert [point.step for point in history.series["train/q_mean"][:3]] == [1, 10, 20]
    assert len(history.series["train/q_mean"]) == len(history.evaluations) == POINTS + 1
    restored = History(10 * POINTS)
    restored.load_state_dict(history.state_dict())
    assert restored == history


@pytest.mark.parametrize(
    "wrong",
    [
        {"evaluations": np.zeros((2, 4))},  # two evaluations at the same step
        {"evaluations": np.zeros((1, 3))},
        {"series": {"train/q_mean": np.array([[1.0, np.inf]])}},
        {"series": {"train/q_mean": "many"}},
        {"returns": {"first": math.inf}},
        {"largest_value": math.nan},
    ],
)
def test_a_wrong_history_is_refused(wrong):
    with pytest.raises(CheckpointError, match="health"):
        History(100).load_state_dict({**History(100).state_dict(), **wrong})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [PPOConfig, DQNConfig, SACConfig, TD3Config, TQCConfig])
def test_advice_names_settings_that_exist(kind, config):
    if config.model_fields["algo"].default not in ADVICE[kind]:
        return
    advice = give_advice(kind, config.model_fields["algo"].default)
    names = re.findall(r"[a-z]+(?:[._][a-z]+)+", advice)
    assert names
    settings = config(env_id="X-v0", total_timesteps=100_000)
    for name in names:
        value: object = settings
        for part in name.split("."):
            value = getattr(value, part)


def test_every_kind_has_advice_for_other_algorithms():
    assert all(give_advice(kind, "own") for kind in KINDS)
