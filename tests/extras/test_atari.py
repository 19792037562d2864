"""Pong as the shipped settings play it, for which the extra atari is installed: `make extras-test`."""

from typing import Any

import numpy as np
import pytest

from rl_training.data.replay_memory import check_memory
from rl_training.envs.factory import make_env
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError
from rl_training.experiment.loading import load_config
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
    """Its reset had no seed of its own."""
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


def test_the_replay_buffer_fits_into_four_gigabytes() -> None:
    """50,000 x (2 x 4 x 84 x 84 + 8 + 4 + 2) bytes = 2,823,100,000."""
    config = load_config("dqn/pong")
    env = make_env(config, 0)
    encoder, codec = ObservationEncoder(env.observation_space), ActionCodec(env.action_space)
    env.close()
    check_memory(config, encoder, codec, available=4_000_000_000)
    with pytest.raises(ConfigError, match=r"50,000 x \(2 x 28,224 \+ 8 \+ 4 \+ 2\) bytes .* = 2\.8 GB"):
        check_memory(config, encoder, codec, available=3_000_000_000)
