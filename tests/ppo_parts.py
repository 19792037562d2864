"""Helpers of the PPO tests: agents for given spaces, and synthetic rollouts."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.ppo import PPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder

VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,))
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(3, start=-1),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-2, 2, (2,)),
}


def make_ppo(observation_space: gym.Space[Any], action_space: gym.Space[Any], **settings: Any) -> PPO:
    """An agent on the CPU, with a small network unless told otherwise."""
    settings = {"num_envs": 4, "rollout_steps": 8, "batch_size": 8, "network": {"hidden": [16, 16]}, **settings}
    config = PPOConfig(env_id="none", total_timesteps=10_000, **settings)
    encoder = ObservationEncoder(observation_space, config.mask_key)
    return PPO(config, encoder, ActionCodec(action_space), torch.device("cpu"))


def make_buffer(ppo: PPO, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> RolloutBuffer:
    """A buffer for the agent's rollouts."""
    codec, config = ActionCodec(action_space), ppo.config
    encoder = ObservationEncoder(observation_space, config.mask_key)
    size = (config.rollout_steps, config.num_envs)
    return RolloutBuffer(*size, encoder.shape, encoder.dtype, codec.shape, codec.dtype)


def one_step_episodes(
    ppo: PPO,
    buffer: RolloutBuffer,
    draw: Callable[[int], np.ndarray],
    reward: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> None:
    """Fills the buffer with episodes of one step each: `draw(N)` observes, `reward(observations, actions)` judges."""
    buffer.reset()
    envs = ppo.config.num_envs
    ended, cut, nothing = np.ones(envs, bool), np.zeros(envs, bool), np.zeros(envs, np.float32)
    while not buffer.full:
        observations = draw(envs)
        actions, logprobs, values = ppo.act(observations)
        rewards = reward(observations, actions)
        buffer.add(observations, actions, rewards, ended, cut, values, logprobs, nothing)
    buffer.compute_returns_and_advantages(nothing, ppo.config.gamma, ppo.config.gae_lambda)


def random_rollout(ppo: PPO, action_space: gym.Space[Any], seed: int = 0) -> RolloutBuffer:
    """A full buffer of vector observations with random rewards."""
    rng = np.random.default_rng(seed)
    buffer = make_buffer(ppo, VECTOR, action_space)
    one_step_episodes(
        ppo,
        buffer,
        lambda n: rng.standard_normal((n, 3)).astype(np.float32),
        lambda observations, actions: rng.standard_normal(len(observations)),
    )
    return buffer


def go_on() -> None:
    """A poll that never stops an update."""
