"""SAC in the registry."""

from __future__ import annotations

from rl_training.config.sac import SACConfig
from rl_training.experiment.late import late
from rl_training.experiment.registry import AlgorithmSpec

SPEC = AlgorithmSpec(
    name="sac",
    config_type=SACConfig,
    train=late("rl_training.runtime.sac_trainer:train_sac"),
    make_trainer=late("rl_training.runtime.sac_trainer:make_sac_trainer"),
    check_spaces=late("rl_training.algorithms.sac:check_spaces"),
    load_policy=late("rl_training.runtime.sac_trainer:load_sac_policy"),
)
