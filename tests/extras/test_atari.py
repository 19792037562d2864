"""Pong with the shipped settings, which needs the extra atari: `make extras-test`."""

from typing import Any

import numpy as np
import pytest

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.data.replay_memory import check_memory
from rl_training.envs.factory import make_env
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping, load_config
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.shipped_runs import MANAGER, findings, policy, small, steps_into_episodes, stopped_and_resumed

PPO = {"total_timesteps": 120, "num_envs": 2, "rollout_steps": 20, "batch_size": 20, "epochs": 1}
DQN = {"total_timesteps": 120, "learning_starts": 40, "buffer_size": 100, "batch_size": 8}


@pytest.mark.parametrize(("name", "changed", "polls"), [("ppo/pong", PPO, 70), ("dqn/pong", DQN, 180)])
def test_shipped_settings_train_and_resume_within_an_episode(name: str, changed: dict[str, Any], polls: int) -> None:
    config = small(name, **changed)
    assert findings(config) == []
    whole = MANAGER.setup(config).train()
    stopped, resumed = stopped_and_resumed(config, polls)
    assert min(steps_into_episodes(stopped)) > 0
    assert 0 < stopped.num_timesteps < resumed.num_timesteps == whole.num_timesteps == 120
    assert policy(resumed) == policy(whole) != policy(stopped)
    assert resumed.checkpoint is not None
    judged = evaluate_checkpoint(resumed.checkpoint, episodes=2)
    assert (judged.lengths, judged.cut) == ((60, 60), 2)


def test_a_step_is_four_frames_and_an_observation_four_of_them() -> None:
    env = make_env(load_config("ppo/pong"), 0)
    first, _ = env.reset(seed=0)
    assert (first.shape, first.dtype) == ((4, 84, 84), np.uint8)
    assert all(np.array_equal(first[0], frame) for frame in first)
    ale = env.unwrapped.ale
    frames = ale.getEpisodeFrameNumber()
    assert 1 <= frames <= 30  # of doing nothing
    observation = env.step(2)[0]
    assert ale.getEpisodeFrameNumber() == frames + 4
    assert np.array_equal(observation[:3], first[1:])
    assert not np.array_equal(observation[3], first[3])
    env.close()


def test_a_later_episode_comes_back_in_another_instance() -> None:
    """An episode whose reset has no seed."""
    config, rng = load_config("ppo/pong"), np.random.default_rng(0)
    env, other = make_env(config, 0), make_env(config, 0)
    env.reset(seed=3)
    over, total = False, 0.0
    while not over:
        _, reward, terminated, truncated, _ = env.step(rng.integers(6))
        assert reward in (-1.0, 0.0, 1.0)
        over, total = terminated or truncated, total + reward
    assert total <= -15  # 21 points were lost, and hardly one won
    env.reset()
    for _ in range(150):
        env.step(rng.integers(6))
    assert other.restore(env.snapshot())
    for action in (0, 2, 3, 4, 5):
        assert np.array_equal(env.step(action)[0], other.step(action)[0])
    assert np.array_equal(env.unwrapped.ale.getRAM(), other.unwrapped.ale.getRAM())
    env.close()
    other.close()


def test_the_replay_buffer_fits_into_half_a_gigabyte() -> None:
    """50,000 x (9/8 x 7,064 + 2 x 4 x 4 + 8 + 4 + 2) + 8 x 7,064 bytes = 399,706,512."""
    config = load_config("dqn/pong")
    env = make_env(config, 0)
    encoder, codec = ObservationEncoder(env.observation_space), ActionCodec(env.action_space)
    env.close()
    check_memory(config, encoder, codec, available=500_000_000)
    with pytest.raises(ConfigError, match=r"50,000 x \(9/8 x 1 x \(7,056 \+ 8\) .* = 0\.4 GB"):
        check_memory(config, encoder, codec, available=400_000_000)


def test_frames_that_are_stored_once_are_pongs_own() -> None:
    """Over the ends of games, with the stacks that they begin with."""
    config = load_config("dqn/pong")
    envs = TrainingEnvs(config, gamma=config.gamma)
    encoder, codec = envs.encoder, envs.codec
    size, action = (1_500, 1, encoder.shape), (codec.shape, codec.dtype)
    plain, shared = ReplayBuffer(*size, encoder.dtype, *action), FrameReplayBuffer(*size, 1, *action)
    envs.start()
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        obs, actions = envs.observation, rng.integers(0, 6, 1)
        step = envs.step(actions)
        for buffer in (plain, shared):
            buffer.add(obs, actions, step.reward, step.next_observation, step.terminated, step.truncated)
    envs.close()
    assert plain.terminated.sum() >= 1
    for seed in range(50):
        batches = [buffer.sample(32, np.random.default_rng(seed)) for buffer in (plain, shared)]
        pairs = zip(*(vars(batch).values() for batch in batches), strict=True)
        assert all(a is b is None or np.array_equal(a, b) for a, b in pairs)


BREAKOUT = {
    "algo": "ppo",
    "env_id": "ale_py:ALE/Breakout-v5",
    "env_kwargs": {"frameskip": 1, "repeat_action_probability": 0.0},
    "wrappers": ["AtariPreprocessing", "FireReset", {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}],
    "training_wrappers": ["EpisodicLife"],
    "total_timesteps": 100,
}


def test_breakout_is_played_by_lives_and_comes_back_in_the_middle_of_a_game() -> None:
    config, rng = config_from_mapping(BREAKOUT), np.random.default_rng(0)
    env, other = make_env(config, 0), make_env(config, 0)
    env.reset(seed=3)
    lives = []
    while len(lives) < 7:  # a game has five lives
        _, _, terminated, truncated, _ = env.step(rng.integers(4))
        if terminated or truncated:
            env.reset(options={})
            lives.append(env.unwrapped.ale.lives())
    assert lives == [4, 3, 2, 1, 5, 4, 3]
    for _ in range(10):
        env.step(rng.integers(4))
    assert other.restore(env.snapshot())
    for action in (0, 2, 3):
        assert np.array_equal(env.step(action)[0], other.step(action)[0])
    assert np.array_equal(env.unwrapped.ale.getRAM(), other.unwrapped.ale.getRAM())
    env.close()
    other.close()


def test_breakout_is_evaluated_over_all_its_lives() -> None:
    """The ball is in play after FIRE, and a paddle that rests in its corner loses five lives."""
    config = config_from_mapping(BREAKOUT).for_evaluation()
    env = make_env(config, 0)

    class Right:
        observation_space, action_space = env.observation_space, env.action_space

        def act(self, observations: list[Any]) -> list[Any]:
            return [np.int64(2)] * len(observations)

    judged = evaluate_policy(Right(), config, [1], max_episode_steps=2_000)
    assert judged.cut == 0
    assert judged.lengths[0] > 5 * 20
    env.close()
