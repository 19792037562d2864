"""Settings of SAC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from rl_training.config.off_policy import OffPolicyConfig
from rl_training.config.settings import Settings


class SACNetworkConfig(Settings):
    """Shape of the policy and of each critic."""

    hidden: tuple[PositiveInt, ...] = Field(default=(256, 256), strict=False)
    """Widths of the hidden layers of each network (after the convolutions, for images)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the hidden layers."""


class SACConfig(OffPolicyConfig):
    """Soft actor-critic with a learned temperature (Haarnoja et al. 2018, "Algorithms and Applications")."""

    algo: Literal["sac"] = "sac"
    """The algorithm."""
    batch_size: PositiveInt = 256
    """Transitions in each update, drawn uniformly with replacement."""
    train_freq: PositiveInt = 1
    """Environment steps, summed over all environments, between two blocks of updates."""
    warmup_hold: PositiveInt = 1
    """Steps for which an environment repeats each random action of the warm-up; more than 1 gets farther away."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Adam's step size of policy, critics and temperature (at the start, where it is annealed)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics that the target critics take over after each update."""
    entropy_coef: float | Literal["auto"] = "auto"
    """Weight of the entropy (alpha, the temperature): `auto` learns it, a number from 0 fixes it."""
    initial_entropy_coef: float = Field(default=1.0, gt=0)
    """Where a learned entropy weight starts."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy that a learned weight aims for, of actions in [-1, 1]; `auto` is minus the number of their dimensions."""
    network: SACNetworkConfig = SACNetworkConfig()
    """Policy and critics."""

    @field_validator("entropy_coef")
    @classmethod
    def _not_negative(cls, value: float | str) -> float | str:
        if isinstance(value, float) and value < 0:
            raise ValueError("expected auto or a number from 0")
        return value
