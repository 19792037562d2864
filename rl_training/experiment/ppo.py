"""PPO in the registry."""

from __future__ import annotations

from rl_training.config.ppo import PPOConfig
from rl_training.experiment.late import late
from rl_training.experiment.registry import AlgorithmSpec

SPEC = AlgorithmSpec(
    name="ppo",
    config_type=PPOConfig,
    train=late("rl_training.runtime.ppo_trainer:train_ppo"),
    make_trainer=late("rl_training.runtime.ppo_trainer:make_ppo_trainer"),
    check_spaces=late("rl_training.algorithms.ppo:check_spaces"),
    load_policy=late("rl_training.runtime.ppo_trainer:load_ppo_policy"),
)
