"""A fault during training becomes an EnvironmentFault with the environment's id, index, step and error text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import EnvironmentFault

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])


def run_until_fault(env_id: str, vectorization: str, num_envs: int = 2, **fields: Any) -> tuple[str, int]:
    """Steps an environment until it fails; returns the message and the steps that came back before."""
    config = PPOConfig(
        env_id=env_id,
        total_timesteps=1,
        num_envs=num_envs,
        batch_size=2,
        vectorization=vectorization,
        normalization={"reward": False},
        **fields,
    )
    envs = TrainingEnvs(config, gamma=None)
    steps = 0
    try:
        envs.start()
        while steps < 1_000:
            envs.step(np.ones((num_envs, *envs.codec.shape), envs.codec.dtype))
            steps += 1
    except EnvironmentFault as fault:
        return str(fault), steps
    finally:
        envs.close()
    raise AssertionError(f"{env_id} had no fault in {steps} steps")


@BOTH
@pytest.mark.parametrize(
    ("name", "life_step", "words"),
    [
        ("NanObs", 137, "observation feature 1 is nan; it must be finite"),
        ("WrongShape", 137, "observation has shape (5,); the space declares (4,)"),
        ("RaisesLate", 700, "step raised RuntimeError: sensor 3 returned no frame"),
        ("ExitsLate", 700, "step called sys.exit(0)"),
    ],
)
def test_a_fault_in_step(name: str, life_step: int, words: str, vectorization: str) -> None:
    message, steps = run_until_fault(f"case_envs:{name}-v0", vectorization)
    assert message.startswith(f"environment case_envs:{name}-v0 (index 0) at its step {life_step}: ")
    assert message.endswith(words)
    assert steps == life_step - 1


@BOTH
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mute", "step raised MuteError: (no text: str() of it raised RuntimeError)"),
        # 500 characters: "bad state:" and 98 times " 0.25" of 4,000 times.
        ("long", f"step raised ValueError: bad state:{' 0.25' * 98}... (20,010 characters)"),
        ("generator", "step raised GeneratorExit"),
    ],
)
def test_whatever_an_env_raises_is_one_line_of_bounded_length(kind: str, words: str, vectorization: str) -> None:
    message, _ = run_until_fault("case_envs:RaisesOddly-v0", vectorization, env_kwargs={"kind": kind})
    assert message == f"environment case_envs:RaisesOddly-v0 (index 0) at its step 2: {words}"


@BOTH
def test_a_fault_in_reset(vectorization: str) -> None:
    message, _ = run_until_fault("case_envs:FailsOnReset-v0", vectorization)
    # The 60th reset comes after 59 episodes of ten steps.
    assert message == (
        "environment case_envs:FailsOnReset-v0 (index 0) at its step 590: reset raised OSError: level file missing"
    )


@BOTH
def test_a_space_that_changes_later_is_named_with_both_shapes(vectorization: str) -> None:
    message, _ = run_until_fault("case_envs:SpaceChangesLater-v0", vectorization)
    assert "at its step 30: reset: observation_space changed from" in message
    assert "(4,)" in message
    assert "(5,)" in message


@BOTH
def test_the_env_at_fault_is_the_one_that_is_named(vectorization: str) -> None:
    config = PPOConfig(
        env_id="case_envs:PickyAct-v0",
        total_timesteps=1,
        num_envs=3,
        batch_size=3,
        vectorization=vectorization,
        normalization={"reward": False},
    )
    envs = TrainingEnvs(config, gamma=None)
    envs.start()
    with pytest.raises(EnvironmentFault, match=r"\(index 1\) at its step 1: step raised ValueError: lever 2 is not"):
        envs.step(np.array([0, 2, 1]))
    envs.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoneReward", "step: reward is None; it must be one number"),
        ("OldApi", "reset: reset returned an array of shape (4,)"),
        ("NoSeedReset", "reset raised TypeError"),
    ],
)
def test_a_broken_promise_is_a_fault_where_nobody_validated(name: str, words: str) -> None:
    assert words in run_until_fault(f"case_envs:{name}-v0", "sync")[0]


def test_an_infinite_reward_is_a_fault() -> None:
    message, _ = run_until_fault("case_envs:InfiniteReward-v0", "sync")
    assert message.endswith("at its step 5: reward is inf; it must be finite")


@BOTH
def test_a_reward_beyond_float32_is_a_fault_without_a_warning(vectorization: str) -> None:
    # Warnings are errors in these tests: none comes of the cast.
    message, _ = run_until_fault("case_envs:HugeReward-v0", vectorization)
    assert message.endswith("(index 0) at its step 5: reward is -1e+39; it must be finite in float32 (up to 3.4e+38)")


def test_a_value_beyond_float32_is_a_fault_with_its_feature() -> None:
    message, _ = run_until_fault("case_envs:HugeObs-v0", "sync")
    assert message.endswith("at its step 3: observation feature position[1] is inf; it must be finite")


def test_a_discrete_observation_outside_its_space_is_a_fault() -> None:
    message, _ = run_until_fault("case_envs:DiscreteObs-v0", "sync", env_kwargs={"choices": 5})
    assert message.endswith("at its step 5: step: observation feature 0 is 5; the space declares 0 to 4")


def test_a_worker_that_dies_is_reported_with_its_last_words() -> None:
    message, steps = run_until_fault("case_envs:DiesLate-v0", "async", env_kwargs={"at": 4})
    assert steps == 3
    assert message == (
        "environment case_envs:DiesLate-v0 (index 0) at its step 4: its worker process ended with exit code 3; "
        "its last output: license server lost"
    )
