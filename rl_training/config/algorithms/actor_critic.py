"""Settings that the off-policy actor-critics share: warm-up, networks, and the moving average of the targets."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.network import MLPConfig


class ActorCriticNetworkConfig(MLPConfig):
    """Architecture of the policy and of each critic."""

    hidden: tuple[PositiveInt, ...] = Field(default=(256, 256), strict=False)


class ActorCriticConfig(OffPolicyConfig):
    """The settings that SAC, TD3 and TQC share."""

    batch_size: PositiveInt = 256
    """Transitions in each update, drawn uniformly with replacement."""
    train_freq: PositiveInt = 1
    """Environment steps between two blocks of updates, summed over all environments."""
    warmup_hold: PositiveInt = 1
    """Steps for which an environment repeats each random action of the warm-up; a larger number explores farther."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Adam's step size for everything that is learned (its initial value, if the schedule is linear)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Weight of the newest weights in the moving averages that are the target networks."""
    network: ActorCriticNetworkConfig = ActorCriticNetworkConfig()
    """The policy and the critics."""
