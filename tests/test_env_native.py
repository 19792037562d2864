"""Native vector environments: a step is N transitions, and the trainer sees the same as with single environments."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.native.masked_cartpole import MaskedCartPole
from rl_training.envs.native.native_vector_env import NativeVectorEnv
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import ConfigError, EnvironmentFault, EnvironmentRefused
from rl_training.experiment.loading import config_from_mapping


def settings(env_id: str = "case_envs:Rows-v0", **fields: Any) -> PPOConfig:
    fields = {
        "num_envs": 3,
        "rollout_steps": 256,
        "vectorization": "native",
        "normalization": {"reward": False},
        **fields,
    }
    return PPOConfig(env_id=env_id, total_timesteps=100, **fields)


def started(env_id: str = "case_envs:Rows-v0", **fields: Any) -> TrainingEnvs:
    envs = TrainingEnvs(settings(env_id, **fields), gamma=0.9)
    envs.start()
    return envs


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("case_envs:Rows-v0", {"mode": "DISABLED"}),
        ("case_envs:Rows-v0", {"mode": "SAME_STEP"}),
        ("case_envs:AskedMode-v0", {}),  # made in SAME_STEP, though its default is NEXT_STEP
    ],
)
def test_each_step_is_n_transitions_with_the_true_final_observation(env_id: str, env_kwargs: dict[str, Any]) -> None:
    envs = started(env_id, env_kwargs=env_kwargs)
    seen, episodes = [], []
    for t in range(6):
        before = envs.observation
        step = envs.step(np.array([1, 1, t % 2]))
        seen.append((before[:, 0].tolist(), step.next_observation[:, 0].tolist(), envs.observation.tolist()))
        episodes.append(step.episodes)
        assert step.reward.tolist() == [1.0, 1.0, t % 2]
        assert step.truncated.tolist() == [t % 2 == 1, False, False]
        assert step.terminated.tolist() == [False, t % 3 == 2, t == 3]
    # Compared only now, when the environment's own arrays have long been overwritten.
    assert seen[1] == ([1, 1, 1], [2, 2, 2], [[0, 1], [2, 0], [2, 0]])
    assert seen[2] == ([0, 2, 2], [1, 3, 3], [[1, 1], [0, 1], [3, 0]])
    assert seen[3] == ([1, 0, 3], [2, 1, 4], [[0, 2], [1, 1], [0, 1]])
    assert seen[5] == ([1, 2, 1], [2, 3, 2], [[0, 3], [0, 2], [2, 1]])
    episodes = [[episode[:3] for episode in ended] for ended in episodes]
    assert episodes == [[], [(0, 2.0, 2)], [(1, 3.0, 3)], [(0, 2.0, 2), (2, 2.0, 4)], [], [(0, 2.0, 2), (1, 3.0, 3)]]


def test_cartpole_has_the_transitions_of_the_single_environment_and_its_time_limit() -> None:
    """Each row is followed by Gymnasium's single CartPole, which is put into the row's state where episodes begin."""
    envs = started("CartPole-v1", num_envs=16, max_episode_steps=25)
    native = envs._envs._envs  # type: ignore[union-attr]
    singles = [CartPoleEnv() for _ in range(16)]
    lengths, rng, ended = np.zeros(16, int), np.random.default_rng(3), {"terminated": 0, "truncated": 0}
    for _ in range(120):
        for i in np.flatnonzero(lengths == 0):
            singles[i].reset(seed=0)
            singles[i].state = native.state[:, i].copy()
            assert np.abs(singles[i].state).max() <= 0.05
        actions = rng.integers(0, 2, 16) if rng.random() < 0.5 else (envs.observation[:, 2] > 0).astype(np.int64)
        step = envs.step(actions)
        lengths += 1
        for i, single in enumerate(singles):
            observation, reward, terminated, _, _ = single.step(actions[i])
            assert step.next_observation[i] == pytest.approx(observation, rel=1e-6, abs=1e-7)
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, lengths[i] == 25)
        expected = [(i, float(lengths[i]), lengths[i], {}) for i in np.flatnonzero(step.done)]
        assert step.episodes == expected
        ended["terminated"] += int(step.terminated.sum())
        ended["truncated"] += int(step.truncated.sum())
        lengths[step.done] = 0
    assert min(ended.values()) > 5


def test_cartpole_draws_from_gymnasiums_own_random_stream() -> None:
    """If all rows end at once, Gymnasium's own resets, a step later, draw the same numbers."""
    ours = MaskedCartPole(4, max_episode_steps=3)
    theirs = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point", max_episode_steps=3)
    assert ours.reset(seed=5)[0].tolist() == theirs.reset(seed=5)[0].tolist()
    push = np.array([0, 1, 0, 1])
    for _ in range(4):
        for _ in range(3):
            mine, its = ours.step(push), theirs.step(push)
            assert mine[0].tolist() == its[0].tolist()
        assert mine[3].all()
        begun, _ = ours.reset(options={"reset_mask": mine[2] | mine[3]})
        assert begun.tolist() == theirs.step(push)[0].tolist()


def test_a_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, same, other = (started("CartPole-v1", seed=seed).observation.tolist() for seed in (1, 1, 2))
    assert first == same != other


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises", "step raised RuntimeError: all simulators lost"),
        ("shape", "observation is an array of shape (1, 2) and dtype float32; expected shape (3, 2) and dtype float32"),
        ("flags", "terminated is an array of shape (3,) and dtype int64; expected shape (3,) and dtype bool"),
        ("result", "step: step returned 4 values"),
        ("no-final", "step: episodes ended, and `final_obs` is not in the infos"),
    ],
)
def test_a_fault_names_the_step_and_what_was_got(fault: str, words: str) -> None:
    envs = started(env_kwargs={"fault": fault})
    step = 6 if fault == "no-final" else 5  # no episode ends in the fifth step
    for _ in range(step - 1):
        envs.step(np.ones(3, np.int64))
    with pytest.raises(EnvironmentFault) as raised:
        envs.step(np.ones(3, np.int64))
    assert str(raised.value).startswith(f"environment case_envs:Rows-v0 (3 native ones) at its step {step}: {words}")


def test_a_nan_is_named_with_its_row() -> None:
    envs = started(env_kwargs={"fault": "nan"})
    for _ in range(4):
        envs.step(np.ones(3, np.int64))
    with pytest.raises(EnvironmentFault, match=r"\(index 1\) at its step 5: observation feature 0 is nan"):
        envs.step(np.ones(3, np.int64))


@pytest.mark.parametrize(
    ("env_id", "fields", "words"),
    [
        (
            "MountainCar-v0",
            {},
            "'MountainCar-v0': no native vector environment .* set vectorization to sync, async or split$",
        ),
        ("case_envs:Rows-v0", {"env_kwargs": {"mode": "NEXT_STEP"}}, "is NEXT_STEP, in which a step can be a reset"),
        ("case_envs:Rows-v0", {"max_episode_steps": 5}, "could not be made: TypeError: .*'max_episode_steps'"),
    ],
)
def test_what_cannot_be_stepped_together_is_refused(env_id: str, fields: dict[str, Any], words: str) -> None:
    config = settings(env_id, **fields)
    with pytest.raises(EnvironmentRefused, match=words):
        TrainingEnvs(config, gamma=0.9)
    (finding,) = validate_env(config).fatal
    assert finding.code == "not-made"


def test_validation_plays_the_native_environment_as_well() -> None:
    assert validate_env(settings("CartPole-v1")).findings == ()
    assert validate_env(settings()).fatal == ()
    (finding,) = validate_env(settings(env_kwargs={"fault": "raises"})).fatal
    assert (finding.code, finding.step) == ("raised", None)
    assert finding.message == (
        "environment case_envs:Rows-v0 (3 native ones) at its step 5: step raised RuntimeError: all simulators lost"
    )
    (finding,) = validate_env(settings("case_envs:MoreActions-v0")).fatal
    assert finding.code == "space-changed"
    assert "Discrete(2)" in finding.message
    assert "Discrete(5)" in finding.message


def test_envpool_is_named_by_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        EnvironmentRefused, match=r"envpool is not installed; run: pip install 'rl-training\[envpool\]'"
    ):
        TrainingEnvs(settings("CartPole-v1", vectorization="envpool"), gamma=0.9)


def test_wrappers_are_refused_with_the_settings() -> None:
    with pytest.raises(ConfigError, match="wrappers: got TimeAwareObservation with vectorization: native"):
        config_from_mapping({**settings().model_dump(), "wrappers": ["TimeAwareObservation"]})


def test_secrets_are_not_in_a_fault() -> None:
    class Tells(MaskedCartPole):
        def step(self, action: Any) -> Any:
            raise ValueError("wrong key hunter2")

    native = NativeVectorEnv(settings("CartPole-v1", env_kwargs={"api_token": "hunter2"}), Tells(2))
    native.reset(seed=[1, 2])
    with pytest.raises(EnvironmentFault) as raised:
        native.step(np.zeros(2, np.int64))
    assert "wrong key" in str(raised.value)
    assert "hunter2" not in f"{raised.value} {raised.value.__cause__}"
