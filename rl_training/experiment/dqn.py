"""DQN in the registry."""

from __future__ import annotations

from rl_training.config.dqn import DQNConfig
from rl_training.experiment.late import late
from rl_training.experiment.registry import AlgorithmSpec

SPEC = AlgorithmSpec(
    name="dqn",
    config_type=DQNConfig,
    train=late("rl_training.runtime.dqn_trainer:train_dqn"),
    make_trainer=late("rl_training.runtime.dqn_trainer:make_dqn_trainer"),
    check_spaces=late("rl_training.algorithms.dqn:check_spaces"),
    load_policy=late("rl_training.runtime.dqn_trainer:load_dqn_policy"),
)
