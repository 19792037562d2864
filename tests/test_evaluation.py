"""Evaluation counts each requested episode once, whatever the lengths and however they are distributed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from rl_training.api.summary import format_evaluation
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_env
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.evaluation import EvaluationResult, Evaluator, evaluate_policy
from rl_training.runtime.policy import GreedyPolicy
from rl_training.seeding import env_seeds, episode_seeds


def config(env_id: str, **settings: Any) -> PPOConfig:
    return PPOConfig(env_id=env_id, total_timesteps=1_000, **settings)


def policy_for(settings: PPOConfig, act: Callable[[np.ndarray], np.ndarray]) -> GreedyPolicy:
    env = make_env(settings, 0)
    env.close()
    return GreedyPolicy(
        encoder=ObservationEncoder(env.observation_space),
        normalizer=None,
        act_greedy=act,
        codec=ActionCodec(env.action_space),
        observation_space=env.observation_space,
        action_space=env.action_space,
    )


def always(action: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda observation: np.full(len(observation), action, np.int64)


def play(env_id: str, seeds: Sequence[int], *, num_envs: int = 8, action: int = 1, **options: Any) -> EvaluationResult:
    settings = config(env_id)
    return evaluate_policy(policy_for(settings, always(action)), settings, seeds, num_envs=num_envs, **options)


# What is counted


def test_short_episodes_weigh_no_more_than_long_ones() -> None:
    """Half of all episodes take one step and return 0, half fifty and return 50; the first to end give about 10."""
    settings = config("case_envs:ShortOrLong-v0")
    policy, evaluator = policy_for(settings, always(1)), Evaluator(settings, num_envs=8)
    means, counts = [], set()
    for seed in range(200):
        result = evaluator.run(policy, episode_seeds(seed, "evaluation", 8))
        means.append(result.return_mean)
        counts.add(result.episodes)
    evaluator.close()
    assert np.mean(means) == pytest.approx(25.0, abs=2.0)
    assert counts == {8}


@pytest.mark.parametrize("num_envs", [1, 3, 8, 20])
def test_results_are_in_the_order_of_the_seeds_and_do_not_depend_on_the_environments(num_envs: int) -> None:
    seeds = episode_seeds(5, "held_out", 11)
    result = play("case_envs:ShortOrLong-v0", seeds, num_envs=num_envs)
    long = [bool(gym.utils.seeding.np_random(seed)[0].random() < 0.5) for seed in seeds]
    assert result.seeds == tuple(seeds)
    assert result.returns == tuple(50.0 if is_long else 0.0 for is_long in long)
    assert result.lengths == tuple(50 if is_long else 1 for is_long in long)
    assert {True, False} == set(long)


def test_a_network_on_continuous_actions_gives_bit_equal_returns_for_1_and_8_environments() -> None:
    settings = config("Pendulum-v1")
    rng = np.random.default_rng(0)
    first, second = (rng.normal(0, 0.4, shape).astype(np.float32) for shape in ((3, 64), (64, 1)))
    policy = policy_for(settings, lambda observation: np.tanh(observation @ first) @ second)
    seeds = episode_seeds(0, "evaluation", 9)
    one, three, eight = (evaluate_policy(policy, settings, seeds, num_envs=n).returns for n in (1, 3, 8))
    assert one == three == eight
    assert len(set(one)) == 9


def test_an_evaluator_gives_the_same_each_time() -> None:
    settings = config("CartPole-v1")
    policy, evaluator = policy_for(settings, always(1)), Evaluator(settings, num_envs=4)
    seeds = episode_seeds(0, "evaluation", 10)
    first = evaluator.run(policy, seeds)
    evaluator.run(policy, episode_seeds(1, "evaluation", 3))
    assert evaluator.run(policy, seeds) == first
    evaluator.close()
    assert evaluator.run(policy, seeds) == first
    evaluator.close()


def test_the_return_is_the_environments_own() -> None:
    """Not the normalised one, whatever the settings normalise in training."""
    settings = config("case_envs:FixedLen3-v0", normalization={"reward": True, "observation": True})
    result = evaluate_policy(policy_for(settings, always(0)), settings, [1, 2])
    assert (result.returns, result.lengths) == ((3.0, 3.0), (3, 3))
    assert play("case_envs:ArrayReward-v0", [1]).returns == (10.0,)
    assert play("case_envs:CutAtTen-v0", [1]).returns == (10.0,)


def test_episode_seeds_are_those_of_no_training_environment_and_no_other_list() -> None:
    marks = {}
    for name, seeds in {
        "training 0": env_seeds(0, 4),
        "training 1": env_seeds(1, 4),
        "evaluation": episode_seeds(0, "evaluation", 10),
        "held out": episode_seeds(0, "held_out", 10),
    }.items():
        marks[name] = {gym.utils.seeding.np_random(seed)[0].uniform(-1, 1) for seed in seeds}
    assert sum(map(len, marks.values())) == len(set.union(*marks.values())) == 28


def test_each_episode_starts_from_its_own_seed() -> None:
    seen: list[float] = []

    def act(observation: np.ndarray) -> np.ndarray:
        seen.append(float(observation[0, 0]))
        return np.ones(len(observation), np.int64)

    settings = config("case_envs:SeedEcho-v0")
    seeds = [11, 12, 11]
    evaluate_policy(policy_for(settings, act), settings, seeds, num_envs=1)
    assert seen[::10] == [float(np.float32(gym.utils.seeding.np_random(s)[0].uniform(-1, 1))) for s in seeds]


def test_an_episode_without_end_is_cut_and_counted_as_cut() -> None:
    result = play("case_envs:NeverEnds-v0", [1, 2, 3], max_episode_steps=25)
    assert (result.returns, result.lengths, result.cut) == ((25.0,) * 3, (25,) * 3, 3)
    assert play("case_envs:Plain-v0", [1, 2], max_episode_steps=10).cut == 0  # ended at that very step


def test_the_settings_bound_the_length_and_number_of_environments() -> None:
    settings = config("case_envs:NeverEnds-v0", evaluation={"max_episode_steps": 7, "num_envs": 2})
    result = evaluate_policy(policy_for(settings, always(1)), settings, [1, 2, 3])
    assert result.lengths == (7, 7, 7)


@pytest.mark.parametrize(
    ("exits", "said"), [(False, "close raised OSError: port 7 is gone"), (True, "close called sys.exit(4)")]
)
def test_environments_that_do_not_close_leave_the_result_and_one_warning(
    exits: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    env_id = "case_envs:FailsOnClose-v0"
    settings = config(env_id, env_kwargs={"exits": exits})
    policy = policy_for(config("case_envs:Plain-v0"), always(1))
    assert evaluate_policy(policy, settings, [1, 2, 3], num_envs=3).returns == (10.0, 10.0, 10.0)
    assert caplog.messages == [f"environment {env_id}: {said} (and 2 more)"]


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one episode"):
        play("case_envs:Plain-v0", [])


# What goes wrong


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        (
            "case_envs:NanObs-v0",
            {},
            "environment case_envs:NanObs-v0 (index 0) at its step 137: observation feature 1 is nan; it must be "
            "finite (in evaluation, at step 7 of the episode with seed 126)",
        ),
        (
            "case_envs:RaisesLate-v0",
            {"at": 33},
            "environment case_envs:RaisesLate-v0 (index 0) at its step 33: step raised RuntimeError: sensor 3 "
            "returned no frame (in evaluation, at step 3 of the episode with seed 106)",
        ),
        (
            "case_envs:ExitsLate-v0",
            {"at": 2},
            "environment case_envs:ExitsLate-v0 (index 0) at its step 2: step called sys.exit(0) (in evaluation, "
            "at step 2 of the episode with seed 100)",
        ),
        (
            "case_envs:FailsOnReset-v0",
            {},
            "environment case_envs:FailsOnReset-v0 (index 0) at its step 590: reset raised OSError: level file "
            "missing (in evaluation, at step 0 of the episode with seed 218)",
        ),
    ],
)
def test_a_fault_names_the_environment_the_episode_and_the_step(
    env_id: str, env_kwargs: dict[str, Any], message: str
) -> None:
    settings = config(env_id, env_kwargs=env_kwargs)
    with pytest.raises(EnvironmentFault) as caught:
        evaluate_policy(policy_for(settings, always(1)), settings, range(100, 300), num_envs=2)
    assert str(caught.value) == message


class Infinite(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return math.inf


def test_an_infinite_reward_is_a_fault() -> None:
    settings = config("case_envs:Plain-v0", wrappers=[{"name": f"{__name__}:Infinite"}])
    policy = policy_for(settings, always(1))
    with pytest.raises(EnvironmentFault, match=r"reward is inf; it must be finite \(in evaluation, at step 1 "):
        evaluate_policy(policy, settings, [1])


def test_a_stop_is_heard_in_the_middle_of_an_episode() -> None:
    stop, calls = StopFlag(), []

    def act(observation: np.ndarray) -> np.ndarray:
        calls.append(len(observation))
        if len(calls) == 5:
            stop.request("signal")
        return np.ones(len(observation), np.int64)

    settings = config("case_envs:NeverEnds-v0")
    with pytest.raises(StopTraining):
        evaluate_policy(policy_for(settings, act), settings, [1, 2], stop=stop)
    assert len(calls) == 5


def test_a_policy_for_other_spaces_is_refused() -> None:
    policy = policy_for(config("case_envs:Plain-v0"), always(1))
    with pytest.raises(EnvironmentRefused, match=r"observation_space is Box\(-1\.0, 1\.0, \(4,\), float32\).*Pendulum"):
        evaluate_policy(policy, config("Pendulum-v1"), [1])


# The greedy policy


@pytest.mark.parametrize(
    ("action_space", "policy_side", "expected"),
    [
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 1]], [[0, 2], [1, 1]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (spaces.Box(-1, 2, (1, 2), np.float64), [[-3.0, 0.5], [1.5, 9.0]], [[[-1.0, 0.5]], [[1.5, 2.0]]]),
    ],
)
def test_actions_come_in_the_environments_own_units(
    action_space: spaces.Space[Any], policy_side: list[Any], expected: list[Any]
) -> None:
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    codec = ActionCodec(action_space)
    policy = GreedyPolicy(
        encoder=ObservationEncoder(observation_space),
        normalizer=None,
        act_greedy=lambda observation: np.array(policy_side * 4, codec.dtype),
        codec=codec,
        observation_space=observation_space,
        action_space=action_space,
    )
    actions = policy.act([np.zeros(2, np.float32)] * 2)
    assert [np.asarray(action).tolist() for action in actions] == expected
    assert all(action_space.contains(action) for action in actions)


def test_observations_go_through_frozen_statistics() -> None:
    space = spaces.Box(-100, 100, (2,), np.float32)
    encoder, seen = ObservationEncoder(space), []
    normalizer = ObservationNormalizer(encoder, clip=10.0)
    normalizer.update(np.array([[0.0, 10.0], [2.0, 30.0]], np.float32))
    before = json.dumps({key: np.asarray(value).tolist() for key, value in normalizer.state_dict().items()})

    def act(observation: np.ndarray) -> np.ndarray:
        seen.append(observation.copy())
        return np.zeros(len(observation), np.int64)

    policy = GreedyPolicy(
        encoder=encoder,
        normalizer=normalizer,
        act_greedy=act,
        codec=ActionCodec(spaces.Discrete(2)),
        observation_space=space,
        action_space=spaces.Discrete(2),
    )
    observations = [np.array([3.0, 20.0], np.float32), np.array([1.0, 40.0], np.float32)]
    policy.act(observations)
    assert seen[0][:2] == pytest.approx(normalizer.normalize(np.stack(observations)))
    assert seen[0][0] == pytest.approx([2.0, 0.0], abs=1e-3)  # mean 1 and 20, deviation 1 and 10
    assert json.dumps({key: np.asarray(value).tolist() for key, value in normalizer.state_dict().items()}) == before


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 17])
def test_an_action_does_not_depend_on_what_else_is_in_the_batch(count: int) -> None:
    rng = np.random.default_rng(count)
    weights = rng.normal(size=(11, 64)).astype(np.float32), rng.normal(size=(64, 3)).astype(np.float32)
    space, action_space = spaces.Box(-9, 9, (11,), np.float32), spaces.Box(-99, 99, (3,), np.float32)
    policy = GreedyPolicy(
        encoder=ObservationEncoder(space),
        normalizer=None,
        act_greedy=lambda observation: np.tanh(observation @ weights[0]) @ weights[1],
        codec=ActionCodec(action_space),
        observation_space=space,
        action_space=action_space,
    )
    observations = list(rng.normal(size=(count, 11)).astype(np.float32))
    together = policy.act(observations)
    alone = [policy.act([observation])[0] for observation in observations]
    assert [a.tobytes() for a in together] == [a.tobytes() for a in alone]


# The numbers


def result_of(returns: Sequence[float]) -> EvaluationResult:
    return EvaluationResult(tuple(range(len(returns))), tuple(returns), tuple(range(1, len(returns) + 1)))


def test_mean_deviation_and_interval_of_a_worked_example() -> None:
    """Returns 1, 2, 3, 4: mean 2.5, deviation sqrt(5/3); t of 3 degrees at 97.5 % is 3.182446 (any table)."""
    result = result_of([1.0, 2.0, 3.0, 4.0])
    assert result.return_mean == 2.5
    assert result.return_std == pytest.approx(math.sqrt(5 / 3))
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2
    assert (result.ci_low, result.ci_high) == pytest.approx((2.5 - half, 2.5 + half))
    assert (result.length_mean, result.episodes) == (2.5, 4)


def test_the_interval_is_that_of_scipy() -> None:
    returns = np.random.default_rng(3).normal(100, 20, 37).tolist()
    expected = stats.t.interval(0.95, 36, loc=np.mean(returns), scale=stats.sem(returns))
    result = result_of(returns)
    assert (result.ci_low, result.ci_high) == pytest.approx(expected)


def test_equal_returns_have_an_interval_of_no_width() -> None:
    result = result_of([500.0] * 10)
    assert (result.return_std, result.ci_low, result.ci_high) == (0.0, 500.0, 500.0)


def test_one_episode_has_no_interval_and_sends_no_nan() -> None:
    result = result_of([7.0])
    assert math.isnan(result.ci_low)
    assert math.isnan(result.ci_high)
    assert result.metrics("eval") == {
        "eval/return_mean": 7.0,
        "eval/return_std": 0.0,
        "eval/length_mean": 1.0,
        "eval/episodes": 1.0,
    }
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (data["ci_low"], data["ci_high"]) == (None, None)
    assert EvaluationResult.from_dict(data) == result


def test_metrics_and_json_carry_everything() -> None:
    result = EvaluationResult((5, 6), (1.0, 3.0), (10, 20), cut=1)
    assert sorted(result.metrics("eval")) == [
        "eval/ci_high",
        "eval/ci_low",
        "eval/cut_episodes",
        "eval/episodes",
        "eval/length_mean",
        "eval/return_mean",
        "eval/return_std",
    ]
    data = json.loads(json.dumps(result.to_dict()))
    assert (data["episodes"], data["cut"], data["seeds"], data["returns"], data["lengths"]) == (
        2,
        1,
        [5, 6],
        [1.0, 3.0],
        [10, 20],
    )
    assert data["return_mean"] == 2.0
    assert EvaluationResult.from_dict(data) == result


def test_equal_returns_of_episodes_that_began_differently_are_doubted() -> None:
    """SeedEcho shows a drawn number at first, and each of its episodes of ten steps pays 1 for action 1."""
    result = play("case_envs:SeedEcho-v0", range(20))
    assert (result.return_std, result.starts) == (0.0, 20)
    assert result.warning is not None
    assert result.warning.startswith("all 20 returns are 10.00, although the episodes began differently")
    assert format_evaluation(result.to_dict()).endswith(f"\n  warning: {result.warning}")
    assert EvaluationResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert play("case_envs:SeedEcho-v0", range(19)).warning is None


def test_equal_returns_of_equal_starts_are_not_doubted() -> None:
    result = play("case_envs:Plain-v0", range(20))
    assert (result.return_std, result.starts, result.warning) == (0.0, 1, None)
    assert EvaluationResult(tuple(range(20)), (1.0,) * 20, (1,) * 20).warning is None


def test_equal_returns_of_successes_are_no_surprise() -> None:
    rates = {"is_success": (1.0,) * 20}
    assert EvaluationResult(tuple(range(20)), (1.0,) * 20, (9,) * 20, numbers=rates, starts=20).warning is None
    rates = {"is_success": (1.0,) * 19 + (0.0,)}
    assert EvaluationResult(tuple(range(20)), (1.0,) * 20, (9,) * 20, numbers=rates, starts=20).warning is not None
