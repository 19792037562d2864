"""Restoring the middle of an episode in another environment, exactly, or reporting that it is impossible."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.factory import make_env
from rl_training.envs.random_state import random_state, random_state_to_json, write_random_state
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import CheckpointError, EnvironmentFault

CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
STACK = [
    {"name": "TimeAwareObservation"},
    {"name": "FrameStackObservation", "kwargs": {"stack_size": 3}},
    {"name": "FlattenObservation"},
]


def settings(env_id: str, **fields: Any) -> PPOConfig:
    return PPOConfig(
        env_id=env_id,
        total_timesteps=1,
        **{"num_envs": 2, "rollout_steps": 256, "normalization": {"reward": False}, **fields},
    )


def same_step(one: Any, other: Any) -> bool:
    return np.array_equal(one[0], other[0]) and one[1:4] == other[1:4]


def in_the_second_episode(config: PPOConfig, steps: int = 12) -> tuple[EpisodeReplay, gym.Space[Any]]:
    """An environment whose random state is long past its seed."""
    env = make_env(config, 0)
    space = env.action_space
    space.seed(7)
    env.reset(seed=11)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(space.sample())
        over = terminated or truncated
    env.reset()
    for _ in range(steps):
        env.step(space.sample())
    return env, space


@pytest.mark.parametrize("wrappers", [[], STACK], ids=["bare", "stack"])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_replay_is_exact_in_the_middle_of_the_second_episode(env_id: str, wrappers: list[Any]) -> None:
    config = settings(env_id, wrappers=wrappers, max_episode_steps=60)
    env, space = in_the_second_episode(config)
    again = make_env(config, 0)
    assert again.restore(env.snapshot()) is True
    assert np.array_equal(again.last_observation, env.last_observation)
    ended = 0
    for _ in range(80):
        action = space.sample()
        one, other = env.step(action), again.step(action)
        assert same_step(one, other)
        # The episode is counted over its replayed part too.
        assert (env.episode_return, env.episode_length) == (again.episode_return, again.episode_length)
        if one[2] or one[3]:
            ended += 1
            assert np.array_equal(env.reset()[0], again.reset()[0])
    assert ended >= 1


def test_a_snapshot_holds_this_episodes_actions_and_what_came_before_them() -> None:
    env, _ = in_the_second_episode(settings("CartPole-v1"), steps=5)
    snapshot = env.snapshot()
    assert snapshot["seed"] == 11
    assert snapshot["actions"].shape == (5,)
    assert snapshot["options"] == "null"
    assert snapshot["episode_length"] == 5
    assert snapshot["episode_return"] == 5.0
    assert snapshot["random_state_before_reset"].startswith('{"bit_generator": "PCG64"')
    env.reset(seed=4, options={"low": -0.01})
    snapshot = env.snapshot()
    assert (snapshot["seed"], snapshot["options"]) == (4, '{"low": -0.01}')
    assert snapshot["random_state_before_reset"] is None
    assert snapshot["actions"].shape == (0,)


def test_the_resets_options_are_replayed() -> None:
    env = make_env(settings("CartPole-v1"), 0)
    env.reset(seed=1)
    env.reset(options={"low": 0.1, "high": 0.1})
    again = make_env(settings("CartPole-v1"), 0)
    assert again.restore(env.snapshot())
    assert again.last_observation == pytest.approx([0.1] * 4)


def test_a_long_episode_outgrows_the_first_array_of_actions() -> None:
    env = make_env(settings("case_envs:NeverEnds-v0"), 0)
    env.reset(seed=1)
    actions = [i % 2 for i in range(333)]
    for action in actions:
        env.step(action)
    assert env.snapshot()["actions"].tolist() == actions


def test_the_recorded_action_is_the_one_that_was_given() -> None:
    env = make_env(settings("case_envs:MutatesAction-v0"), 0)
    env.reset(seed=1)
    env.step(np.array([0.5, -0.5], np.float32))
    assert env.snapshot()["actions"].tolist() == [[0.5, -0.5]]
    again = make_env(settings("case_envs:MutatesAction-v0"), 0)
    assert again.restore(env.snapshot())


def test_an_env_without_random_numbers_comes_back() -> None:
    env = make_env(settings("case_envs:NoRandomNumbers-v0"), 0)
    env.reset(seed=1)
    env.reset()
    env.step(1)
    snapshot = env.snapshot()
    assert snapshot["random_state"] is None
    again = make_env(settings("case_envs:NoRandomNumbers-v0"), 0)
    assert again.restore(snapshot)
    assert again.last_observation.tolist() == pytest.approx([0.1] * 4)


@pytest.mark.parametrize("bits", ["PCG64", "MT19937", "SFC64", "Philox"])
def test_random_states_of_other_generators_survive_as_text(bits: str) -> None:
    env = make_env(settings("case_envs:SeedEcho-v0"), 0)
    env.reset(seed=1)
    env.unwrapped.np_random = np.random.Generator(getattr(np.random, bits)(5))
    env.unwrapped.np_random.uniform(size=3)
    text = random_state_to_json(random_state(env))
    assert text is not None
    expected = env.unwrapped.np_random.uniform(size=4).tolist()
    other = make_env(settings("case_envs:SeedEcho-v0"), 0)
    write_random_state(other, text)
    assert other.unwrapped.np_random.uniform(size=4).tolist() == expected


def test_a_random_state_calls_nothing_but_a_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("seed", "test"):
        monkeypatch.setattr(np.random, name, lambda name=name: called.append(name))
    env = make_env(settings("case_envs:SeedEcho-v0"), 0)
    for name in ("seed", "test", "BitGenerator", "Generator", "nothing"):
        with pytest.raises((ValueError, NotImplementedError)):
            write_random_state(env, json.dumps({"bit_generator": name, "state": {}}))
    assert called == []


def test_a_random_state_makes_no_array_larger_than_its_text() -> None:
    env = make_env(settings("case_envs:SeedEcho-v0"), 0)
    env.unwrapped.np_random = np.random.Generator(np.random.MT19937(5))
    text = random_state_to_json(random_state(env))
    assert text is not None
    with pytest.raises(ValueError, match="has the type 'S999999999', expected uint32 or uint64"):
        write_random_state(env, text.replace('"uint32"', '"S999999999"'))


def test_reading_the_random_state_draws_none() -> None:
    env = make_env(settings("case_envs:SeedEcho-v0"), 0)
    assert random_state(env) is None
    assert env.unwrapped._np_random is None


@pytest.mark.parametrize("name", ["NotDeterministic", "RemembersEpisodes"])
def test_an_env_that_is_not_deterministic_is_found_and_begins_a_fresh_episode(name: str) -> None:
    env = make_env(settings(f"case_envs:{name}-v0"), 0)
    env.reset(seed=1)
    env.reset()
    env.reset()
    for _ in range(4):
        env.step(1)
    again = make_env(settings(f"case_envs:{name}-v0"), 0)
    assert again.restore(env.snapshot()) is False
    assert again.snapshot()["actions"].shape == (0,)
    assert again.snapshot()["episode_length"] == 0
    again.step(1)


def test_a_fresh_episode_is_not_the_one_that_was_lost() -> None:
    env = make_env(settings("case_envs:SeedEcho-v0"), 0)
    env.reset(seed=1)
    env.reset()
    env.step(1)
    snapshot = env.snapshot()
    lost = float(env.last_observation[0])
    following = float(env.reset()[0][0])
    snapshot["episode_return"] = 99.0  # as if the replay had ended elsewhere
    again = make_env(settings("case_envs:SeedEcho-v0"), 0)
    assert again.restore(snapshot) is False
    assert float(again.last_observation[0]) == following != lost


def test_a_replay_that_ends_too_early_is_not_exact() -> None:
    long = make_env(settings("case_envs:Plain-v0"), 0)
    long.reset(seed=1)
    for _ in range(6):
        long.step(0)
    short = make_env(settings("case_envs:Plain-v0", max_episode_steps=3), 0)
    assert short.restore(long.snapshot()) is False


def test_life_steps_continue_and_do_not_count_the_replay() -> None:
    env = make_env(settings("case_envs:RaisesLate-v0", env_kwargs={"at": 40}), 0)
    for _ in range(2):
        env.reset(seed=1)
        for _ in range(7):
            env.step(1)
    again = make_env(settings("case_envs:RaisesLate-v0", env_kwargs={"at": 8}), 0)
    assert again.restore(env.snapshot())
    with pytest.raises(EnvironmentFault, match="at its step 15: step raised RuntimeError: sensor 3"):
        again.step(1)


def actions_for(envs: TrainingEnvs, rng: np.random.Generator) -> Any:
    return rng.integers(0, 2, size=envs.num_envs)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_training_envs_continue_bit_for_bit_from_their_state(vectorization: str) -> None:
    config = settings(
        "CartPole-v1",
        num_envs=3,
        vectorization=vectorization,
        normalization={"observation": True, "reward": True},
        wrappers=[{"name": "FrameStackObservation", "kwargs": {"stack_size": 2}}],
    )
    rng = np.random.default_rng(5)
    envs = TrainingEnvs(config, gamma=0.9)
    envs.start()
    while len(set(envs._envs.call("episode_length"))) == 1:
        envs.step(actions_for(envs, rng))
    for _ in range(60):
        envs.step(actions_for(envs, rng))
    state = envs.state_dict()
    assert_plain(state)
    again = TrainingEnvs(config, gamma=0.9)
    assert again.load_state_dict(state) == []
    assert again.normalized().tobytes() == envs.normalized().tobytes()
    assert again.observation.tobytes() == envs.observation.tobytes()
    finished = 0
    for _ in range(40):
        actions = actions_for(envs, rng)
        one, other = envs.step(actions), again.step(actions)
        for name in ("next_observation", "next_normalized", "reward", "scaled_reward", "terminated", "truncated"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert one.episodes == other.episodes
        assert envs.normalized().tobytes() == again.normalized().tobytes()
        finished += len(one.episodes)
    assert finished >= 1
    assert again._envs.life_steps == envs._envs.life_steps
    envs.close()
    again.close()


def assert_plain(state: Any) -> None:
    """Numbers, strings, None, and lists and dicts of them, and arrays of numbers that are tensors."""
    if isinstance(state, dict):
        assert all(type(key) is str for key in state)
        for value in state.values():
            assert_plain(value)
    elif isinstance(state, list):
        for value in state:
            assert_plain(value)
    elif isinstance(state, np.ndarray):
        assert torch.from_numpy(state).numpy().tobytes() == state.tobytes()
    else:
        assert state is None or type(state) in (int, float, str)


def test_a_dict_observation_comes_back() -> None:
    config = settings("case_envs:DictObs-v0")
    envs = TrainingEnvs(config, gamma=None)
    envs.start()
    for _ in range(14):
        envs.step(np.array([0, 1]))
    again = TrainingEnvs(config, gamma=None)
    assert again.load_state_dict(envs.state_dict()) == []
    assert again.observation.tobytes() == envs.observation.tobytes()
    assert again.step(np.array([0, 1])).next_observation["vector"][:, 3].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_envs_that_cannot_be_restored_are_named_and_their_return_starts_from_zero(vectorization: str) -> None:
    config = settings("case_envs:NotDeterministic-v0", vectorization=vectorization, normalization={"reward": True})
    envs = TrainingEnvs(config, gamma=0.9)
    envs.start()
    for _ in range(3):
        envs.step(np.array([1, 1]))
    state = envs.state_dict()
    envs.close()
    again = TrainingEnvs(config, gamma=0.9)
    try:
        assert again.load_state_dict(state) == [0, 1]
        assert again.reward_normalizer is not None
        assert again.reward_normalizer.returns.tolist() == [0.0, 0.0]
        assert again.observation[:, 0].tolist() == [0.0, 0.0]
        steps = [again.step(np.array([1, 1])) for _ in range(10)]
        assert [episode.length for episode in steps[-1].episodes] == [10, 10]
    finally:
        again.close()


def test_a_nan_after_a_resume_names_the_step_counted_from_the_start_of_the_run() -> None:
    envs = TrainingEnvs(settings("case_envs:Plain-v0"), gamma=None)
    envs.start()
    for _ in range(123):
        envs.step(np.array([1, 1]))
    again = TrainingEnvs(settings("case_envs:NanEarly-v0"), gamma=None)
    # The third step of its episodes has a NaN, so that the replay is not exact; the step count continues from 123.
    assert again.load_state_dict(envs.state_dict()) == [0, 1]
    again.step(np.array([1, 1]))
    again.step(np.array([1, 1]))
    with pytest.raises(EnvironmentFault, match="at its step 126: observation feature 1 is nan"):
        again.step(np.array([1, 1]))


def test_a_state_of_other_settings_is_refused_with_both_values() -> None:
    envs = TrainingEnvs(settings("case_envs:Plain-v0", normalization={"reward": True}), gamma=0.9)
    envs.start()
    state = envs.state_dict()
    with pytest.raises(CheckpointError, match="has 2 environments; the settings have 3"):
        TrainingEnvs(settings("case_envs:Plain-v0", num_envs=3), gamma=0.9).load_state_dict(state)
    with pytest.raises(CheckpointError, match="reward normalizer: the checkpoint has one; the settings ask for none"):
        TrainingEnvs(settings("case_envs:Plain-v0"), gamma=0.9).load_state_dict(state)
