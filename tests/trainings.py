"""Short trainings on a given device."""

from collections.abc import Callable
from typing import Any

from rl_training import TrainResult, train_dqn, train_ppo, train_sac, train_td3, train_tqc
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig

SMALL: dict[str, Any] = {"network": {"hidden": [16, 16]}, "seed": 3, "evaluation": {"episodes": 1, "video": False}}
OFF: dict[str, Any] = {"total_timesteps": 192, "learning_starts": 64, "batch_size": 16, "buffer_size": 256, **SMALL}
IMAGES: dict[str, Any] = {"env_id": "case_envs:GreyImage-v0"}
MASKS: dict[str, Any] = {"env_id": "case_envs:Strict-v0", "action_mask": "info"}
PPO: dict[str, Any] = {"num_envs": 4, "rollout_steps": 16, "batch_size": 48, "total_timesteps": 192, **SMALL}

TRAININGS: dict[str, Callable[[str], TrainResult]] = {
    "ppo": lambda device: train_ppo(PPOConfig(env_id="CartPole-v1", device=device, **PPO)),
    "ppo-box": lambda device: train_ppo(PPOConfig(env_id="Pendulum-v1", device=device, **PPO)),
    "ppo-images": lambda device: train_ppo(PPOConfig(**IMAGES, device=device, **PPO)),
    "ppo-masks": lambda device: train_ppo(PPOConfig(**MASKS, device=device, **PPO)),
    "dqn": lambda device: train_dqn(DQNConfig(env_id="CartPole-v1", double=True, dueling=True, device=device, **OFF)),
    "dqn-images": lambda device: train_dqn(DQNConfig(**IMAGES, device=device, **OFF)),
    "dqn-masks": lambda device: train_dqn(DQNConfig(**MASKS, double=True, device=device, **OFF)),
    "sac": lambda device: train_sac(SACConfig(env_id="Pendulum-v1", device=device, **OFF)),
    "td3": lambda device: train_td3(TD3Config(env_id="Pendulum-v1", device=device, **OFF)),
    "tqc": lambda device: train_tqc(TQCConfig(env_id="Pendulum-v1", device=device, **OFF)),
}
"""PPO's batches have two sizes: 64 transitions, 48 at a time."""
