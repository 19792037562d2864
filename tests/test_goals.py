"""Goals of environments: where they are, what is computed for them, what validation refuses, and flipped bits."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.goals.bit_flipping import BitFlipping
from rl_training.envs.goals.goal_columns import find_goal_columns
from rl_training.envs.goals.goal_rewards import GoalRewards
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ObservationEncoder
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation import step_speed
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.checkpoint import find_checkpoint
from tests.off_policy_runs import dqn, sac

BITS = "rl_training.envs.goals.bit_flipping:BitFlipping-v0"
NUMBERS = spaces.Box(-np.inf, np.inf, (2,))


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(step_speed, "TIMED_SECONDS", 1e-9)
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))


def encoder_of(**parts: gym.Space[Any]) -> ObservationEncoder:
    return ObservationEncoder(spaces.Dict(list(parts.items()), sort_keys=False))


# Where goals are.


def test_goals_are_found_by_name_wherever_they_stand() -> None:
    encoder = encoder_of(desired_goal=NUMBERS, speed=spaces.Discrete(3), achieved_goal=NUMBERS)
    columns = find_goal_columns(encoder)
    assert (columns.desired, columns.achieved) == (slice(0, 2), slice(5, 7))
    vector = np.arange(14, dtype=np.float32).reshape(2, 7)
    assert columns.with_achieved_as_desired(vector)[:, :3].tolist() == [[5, 6, 2], [12, 13, 9]]
    assert vector[0, 0] == 0


@pytest.mark.parametrize(
    ("space", "encoded", "goals"),
    [
        (spaces.Box(-9, 9, (2, 2), np.float64), [1.5, 2, 3, 4], [[1.5, 2], [3, 4]]),
        (spaces.Box(-9, 9, (2,), np.int32), [2.9999998, -3], [3, -3]),
        (spaces.MultiBinary(3), [0, 1, 1], [0, 1, 1]),
    ],
)
def test_goals_have_the_form_of_their_space(space: gym.Space[Any], encoded: list[float], goals: Any) -> None:
    columns = find_goal_columns(encoder_of(achieved_goal=space, desired_goal=space))
    made = columns.to_goals(np.array([encoded], np.float32))
    assert made.tolist() == [goals]
    assert made.dtype == space.dtype


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"achieved_goal": NUMBERS}, "needs a Dict observation with achieved_goal and desired_goal, got Dict"),
        (
            {"achieved_goal": NUMBERS, "desired_goal": spaces.Box(0, 1, (3,))},
            "both of the same shape; got achieved_goal",
        ),
        (dict.fromkeys(("achieved_goal", "desired_goal"), spaces.Discrete(3)), "a Box or MultiBinary of numbers"),
        (
            dict.fromkeys(("achieved_goal", "desired_goal"), spaces.Box(0, 255, (4, 4, 1), np.uint8)),
            "a Box or MultiBinary of numbers",
        ),
    ],
)
def test_observations_without_two_goals_alike_are_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentRefused, match=f"^hindsight needs .*{words}|^hindsight {words}"):
        find_goal_columns(encoder_of(**parts))


# What is computed for them.


def computed(env: str, achieved: Any, desired: Any) -> tuple[list[float], list[bool]]:
    config = sac(env, hindsight={})
    with closing(TrainingEnvs(config, gamma=None)) as envs, closing(GoalRewards(config, envs.encoder)) as goals:
        rewards, terminated = goals.compute(np.array(achieved, np.float32), np.array(desired, np.float32))
    assert (rewards.dtype, terminated.dtype) == (np.float32, np.bool_)
    return rewards.tolist(), terminated.tolist()


def test_rewards_and_ends_are_those_of_the_environment() -> None:
    """Distances 0.25 and 5, and a goal within 0.3."""
    achieved, desired = [[0, 0], [3, 4]], [[0.25, 0], [0, 0]]
    assert computed("Reach", achieved, desired) == ([0, -1], [True, False])
    assert computed("ReachDense", achieved, desired) == ([-0.25, -5], [False, False])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("ReachFlat", r"compute_reward returned \(\), expected \(2,\) for 2 pairs of goals"),
        ("ReachRaises", r"compute_reward raised KeyError: 'effort'"),
        ("ReachNan", r"compute_reward returned a reward that is not finite in float32"),
    ],
)
def test_faults_name_the_environment_and_the_method(env: str, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"^environment case_envs:{env}-v0: {message}$"):
        computed(env, np.zeros((2, 2)), np.zeros((2, 2)))


def test_a_missing_method_is_named() -> None:
    with pytest.raises(EnvironmentRefused, match=r"^hindsight needs the method compute_reward\(achieved_goal, desired"):
        computed("ReachWithoutMethods", np.zeros((1, 2)), np.zeros((1, 2)))


def test_the_statistics_of_desired_goals_are_those_of_both() -> None:
    """Goals 0 and 4 were desired, 8 and 8 achieved: their mean is 5, and that of the achieved ones stays 8."""
    encoder = encoder_of(achieved_goal=spaces.Box(-9, 9, (1,)), desired_goal=spaces.Box(-9, 9, (1,)))
    normalizer = ObservationNormalizer(encoder, clip=10.0)
    normalizer.imagine = find_goal_columns(encoder).with_achieved_as_desired
    normalizer.update(np.array([[8, 0], [8, 4]], np.float32))
    assert normalizer.statistics.mean.tolist() == [8.0, 5.0]
    assert normalizer.statistics.var.tolist() == [0.0, 11.0]  # 25, 1, 9 and 9 in four


# What validation finds.


def found(env: str, **fields: Any) -> list[str]:
    config = sac(env, hindsight={}, **fields)
    return [f.line() for f in validate_env(config, get_algorithm("sac").check_spaces, episodes=1).findings]


@pytest.mark.parametrize("env", ["Reach", "ReachDense", "ReachShared"])
def test_an_environment_that_computes_what_its_steps_give_is_valid(env: str) -> None:
    assert [line for line in found(env) if not line.startswith("warning: array-reused")] == []


@pytest.mark.parametrize(
    ("env", "fields", "message"),
    [
        (
            "ReachCostly",
            {},
            "compute_reward gave -1 for the goals of a step whose reward was -1.06937: hindsight needs",
        ),
        ("ReachStaying", {"env_kwargs": {"size": 0.8}}, "compute_terminated gave True for the goals of a step whose"),
        ("ReachOneByOne", {}, "compute_terminated gives something else for a batch of goals than for each of them"),
        ("ReachFlat", {}, r"compute_reward returned \(\), expected \(200,\)"),
        ("ReachRaises", {}, "compute_reward raised KeyError: 'effort'"),
        ("ReachNan", {}, "compute_reward returned a reward that is not finite in float32"),
        ("AsymAct", {}, "hindsight needs a Dict observation with achieved_goal and desired_goal, got Box"),
    ],
)
def test_what_hindsight_can_not_work_with_is_fatal(env: str, fields: dict[str, Any], message: str) -> None:
    lines = found(env, **fields)
    assert lines
    assert any(re.match(f"fatal: goals: {message}", line) for line in lines), lines


def test_a_wrapper_that_changes_rewards_is_found() -> None:
    lines = found("Reach", wrappers=[{"name": "ClipReward", "kwargs": {"min_reward": -0.5, "max_reward": 0.0}}])
    assert [line for line in lines if "compute_reward gave -1 for the goals of a step whose reward was -0.5" in line]


def test_without_hindsight_goals_are_not_looked_at() -> None:
    config = sac("ReachCostly")
    assert validate_env(config, get_algorithm("sac").check_spaces, episodes=1).findings == ()


def test_a_fault_in_an_update_ends_the_run_and_keeps_the_newest_checkpoint() -> None:
    own = {"total_timesteps": 200, "learning_starts": 100, "batch_size": 16, "checkpoint": {"every": 50}}
    config = sac("ReachRaises", hindsight={}, **own)
    trainer = DefaultExperimentManager().setup(config)
    with pytest.raises(
        EnvironmentFault, match=r"^environment case_envs:ReachRaises-v0: compute_reward raised KeyError"
    ):
        trainer.train()
    assert find_checkpoint(trainer.run.run_dir).manifest.num_timesteps == 100


# Bit flipping.


def test_bits_by_hand() -> None:
    env = BitFlipping(bits=3)
    first, _ = env.reset(seed=1)
    bits, goal = first["observation"], first["desired_goal"]
    wrong = np.flatnonzero(bits != goal)
    assert len(wrong) in (1, 2, 3)
    for i, bit in enumerate(wrong):
        observation, reward, terminated, truncated, info = env.step(np.int64(bit))
        last = i == len(wrong) - 1
        assert (reward, terminated, info["is_success"]) == (0.0 if last else -1.0, last, last)
        assert truncated == (i == 2)
        assert (observation["achieved_goal"] != bits).sum() == i + 1
    assert env.compute_reward(np.eye(3), np.eye(3), {}).tolist() == [0, 0, 0]
    assert env.compute_reward(np.eye(3), 1 - np.eye(3), {}).tolist() == [-1, -1, -1]


def test_bit_flipping_is_valid() -> None:
    config = dqn(BITS, hindsight={}, env_kwargs={"bits": 4})
    assert validate_env(config, get_algorithm("dqn").check_spaces).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize(("hindsight", "solved"), [({}, True), (None, False)])
def test_fifteen_bits_are_flipped_with_hindsight_and_not_without(hindsight: Any, solved: bool) -> None:
    config = dqn(
        BITS,
        hindsight=hindsight,
        total_timesteps=10_000,
        learning_starts=1_000,
        buffer_size=10_000,
        batch_size=128,
        gamma=0.98,
        train_freq=16,
        gradient_steps=16,
        target_update_every=500,
        exploration={"fraction": 0.3},
        network={"hidden": [256]},
        evaluation={"every": 10_000, "episodes": 100},
    )
    rate = DefaultExperimentManager().setup(config).train().metrics["eval/success_rate"]
    assert rate >= 0.95 if solved else rate <= 0.05
