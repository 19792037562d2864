"""The settings of SAC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.sections import Settings


class SACNetworkConfig(Settings):
    """Architecture of the policy and of each critic."""

    hidden: tuple[PositiveInt, ...] = Field(default=(256, 256), strict=False)
    """Widths of the hidden layers of each network (after the convolutions, for images)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the hidden layers."""


class SACConfig(OffPolicyConfig):
    """Soft Actor-Critic with a learned temperature (Haarnoja et al. 2018, "Algorithms and Applications")."""

    algo: Literal["sac"] = "sac"
    """The algorithm."""
    batch_size: PositiveInt = 256
    """Transitions in each update, drawn uniformly with replacement."""
    train_freq: PositiveInt = 1
    """Environment steps between two blocks of updates, summed over all environments."""
    warmup_hold: PositiveInt = 1
    """Steps for which an environment repeats each random action of the warm-up; a larger number explores farther."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Adam's step size for policy, critics and temperature (its initial value, if the schedule is linear)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Weight of the critics in the moving average that updates the target critics after each update."""
    entropy_coef: float | Literal["auto"] = "auto"
    """Weight of the entropy (alpha, the temperature): `auto` learns it, and a number from 0 on fixes it."""
    initial_entropy_coef: float = Field(default=1.0, gt=0)
    """Initial value of a learned entropy weight."""
    target_entropy: float | Literal["auto"] = "auto"
    """Target of a learned entropy weight, for actions in [-1, 1]; `auto` is minus the number of action dimensions."""
    network: SACNetworkConfig = SACNetworkConfig()
    """The policy and the critics."""

    @field_validator("entropy_coef")
    @classmethod
    def _not_negative(cls, value: float | str) -> float | str:
        if isinstance(value, float) and value < 0:
            raise ValueError("expected auto or a number from 0")
        return value
