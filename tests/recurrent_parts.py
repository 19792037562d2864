"""Helpers of the tests of PPO with a memory: agents, and rollouts in which episodes end."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.sequence_buffer import SequenceBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from tests.ppo_parts import ACTIONS, VECTOR

SMALL: dict[str, Any] = {"num_envs": 4, "rollout_steps": 8, "sequence_length": 4, "batch_size": 8, "seed": 3}


def make_recurrent(
    kind: str = "lstm",
    action_space: gym.Space[Any] = ACTIONS["discrete"],
    space: gym.Space[Any] = VECTOR,
    **fields: Any,
) -> RecurrentPPO:
    """An agent on the CPU, with 5 units in each recurrent layer and one hidden layer of 6."""
    network = {"hidden": [6], "recurrent": kind, "recurrent_size": 5}
    config = PPOConfig(env_id="none", total_timesteps=10_000, network=network, **{**SMALL, **fields})
    encoder = ObservationEncoder(space, config.mask_key)
    return RecurrentPPO(config, encoder, ActionCodec(action_space), torch.device("cpu"))


def make_buffer(ppo: RecurrentPPO, action_space: gym.Space[Any] = ACTIONS["discrete"]) -> SequenceBuffer:
    """A buffer for the agent's rollouts of vectors."""
    return ppo.make_buffer(ppo.config.num_envs, ObservationEncoder(VECTOR), ActionCodec(action_space))


def collect(
    ppo: RecurrentPPO, buffer: SequenceBuffer, dones: np.ndarray | None = None, steps: int | None = None, seed: int = 0
) -> SequenceBuffer:
    """Fills a buffer with random observations and rewards; episodes terminate where `dones` [T, N] is set."""
    rng, envs = np.random.default_rng(seed), ppo.config.num_envs
    buffer.reset(steps)
    while not buffer.full:
        observation = rng.standard_normal((envs, 3)).astype(np.float32)
        buffer_done = np.zeros(envs, bool) if dones is None else dones[buffer.position]
        actions = ppo.acting.act(observation)
        buffer.add_step(observation, actions, rng.standard_normal(envs))
        buffer.end_episodes(buffer_done, np.zeros(envs, bool), None)
        ppo.acting.complete(buffer)
    buffer.compute_returns_and_advantages(np.zeros(envs), 0.9, 0.95)
    return buffer


def random_dones(buffer: SequenceBuffer, seed: int = 1) -> np.ndarray:
    """Where episodes end: in a quarter of the steps, bool [T, N]."""
    return np.random.default_rng(seed).random((buffer.rollout_steps, buffer.num_envs)) < 0.25
