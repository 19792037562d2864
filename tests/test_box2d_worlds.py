"""BipedalWalker's episodes do not depend on what its Box2D world has been used for before."""

from typing import Any

import numpy as np

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.box2d_worlds import FreshWorld
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.factory import make_env


def walker() -> EpisodeReplay:
    return make_env(PPOConfig(env_id="BipedalWalker-v3", total_timesteps=1, max_episode_steps=80), 0)


def play(env: EpisodeReplay, actions: np.random.Generator, steps: int = 80) -> list[Any]:
    """Steps until the end of the episode, or `steps`; returns all that was seen."""
    seen: list[Any] = [np.asarray(env.last_observation).tobytes()]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(actions.uniform(-1, 1, 4).astype(np.float32))
        seen.append((observation.tobytes(), reward))
        if terminated or truncated:
            break
    return seen


def test_a_seed_gives_the_same_episode_however_many_came_before() -> None:
    used = walker()
    for seed in range(4):
        used.reset(seed=seed)
        new = walker()
        new.reset(seed=seed)
        assert play(used, np.random.default_rng(seed)) == play(new, np.random.default_rng(seed)), seed


def test_the_third_episode_is_restored_in_its_middle_and_continues() -> None:
    env, actions = walker(), np.random.default_rng(5)
    env.reset(seed=3)
    for _ in range(2):
        play(env, actions)
        env.reset()
    play(env, actions, steps=25)
    again = walker()
    assert again.restore(env.snapshot()) is True
    assert play(env, np.random.default_rng(6)) == play(again, np.random.default_rng(6))
    assert np.array_equal(env.reset()[0], again.reset()[0])


def test_other_environments_are_left_alone() -> None:
    env: Any = make_env(PPOConfig(env_id="LunarLander-v3", total_timesteps=1), 0)
    while env is not env.unwrapped:
        assert not isinstance(env, FreshWorld)
        env = env.env
