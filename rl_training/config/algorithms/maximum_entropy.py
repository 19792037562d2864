"""Settings of the entropy's weight, which SAC and TQC share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rl_training.config.algorithms.actor_critic import ActorCriticConfig


class MaximumEntropyConfig(ActorCriticConfig):
    """The settings that SAC and TQC share."""

    entropy_coef: float | Literal["auto"] = "auto"
    """Weight of the entropy (alpha, the temperature): `auto` learns it, and a number from 0 on fixes it."""
    initial_entropy_coef: float = Field(default=1.0, gt=0)
    """Initial value of a learned entropy weight."""
    target_entropy: float | Literal["auto"] = "auto"
    """Target of a learned entropy weight, for actions in [-1, 1]; `auto` is minus the number of action dimensions."""

    @field_validator("entropy_coef")
    @classmethod
    def _not_negative(cls, value: float | str) -> float | str:
        if isinstance(value, float) and value < 0:
            raise ValueError("expected auto or a number from 0")
        return value
