"""Tiny tasks that several test files train on."""

from typing import Any

SMALL = """
algo: ppo
env_id: case_envs:Plain-v0
total_timesteps: 256
num_envs: 2
rollout_steps: 32
batch_size: 64
epochs: 1
logging: {every: 64}
evaluation: {every: 128, episodes: 3, final_episodes: 5, video: false}
checkpoint: {every: 128}
"""
"""A config file of eleven lines. Training on it takes less than a second."""

PLAIN: dict[str, Any] = {
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 2_000,
    "num_envs": 2,
    "rollout_steps": 50,
    "batch_size": 50,
    "learning_rate": 0.01,
    "evaluation": {"every": 500, "episodes": 3, "final_episodes": 20, "video": False},
    "promotion": {"model": "plain", "floor": 5.0, "episodes": 20},
}
"""PPO settings with four evaluations during training. The best return is 10.0, which takes a few hundred steps."""
