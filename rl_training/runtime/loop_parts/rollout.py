"""The steps of a rollout of PPO.

Shapes: N environments, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

import numpy as np

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.training_envs import TrainingEnvs, VectorStep


def take_step(envs: TrainingEnvs, algorithm: PPO | RecurrentPPO, buffer: RolloutBuffer) -> VectorStep:
    """Steps all environments once and stores the transitions; values and log-probabilities may follow later."""
    observation, acting = envs.normalized(), algorithm.acting  # [N, O]
    action = acting.act(observation)  # [N, A]
    step = envs.step(action)
    buffer.add_step(observation, action, step.scaled_reward)
    if step.episodes:
        # V of the final observations, [N]; the buffer reads those of truncated episodes alone.
        final_value = algorithm.value(step.next_normalized) if np.count_nonzero(step.truncated) else None
        buffer.end_episodes(step.terminated, step.truncated, final_value)
    if acting.is_full:
        acting.complete(buffer)
    return step


def complete_rollout(envs: TrainingEnvs, algorithm: PPO | RecurrentPPO, buffer: RolloutBuffer) -> None:
    """Computes the advantages and returns of a full buffer."""
    algorithm.acting.complete(buffer)
    last_value = algorithm.value(envs.normalized())  # [N]
    buffer.compute_returns_and_advantages(last_value, algorithm.config.gamma, algorithm.config.gae_lambda)
