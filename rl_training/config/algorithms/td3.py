"""The settings of TD3."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl_training.config.algorithms.actor_critic import ActorCriticConfig


class TD3Config(ActorCriticConfig):
    """Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018)."""

    algo: Literal["td3"] = "td3"
    """The algorithm."""
    policy_delay: PositiveInt = 2
    """Updates of the critics for each update of the policy and the target networks."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the Gaussian noise that is added to actions in training; actions are in [-1, 1]."""
    target_noise: float = Field(default=0.2, ge=0)
    """Standard deviation of the Gaussian noise that is added to the target policy's actions in targets."""
    target_noise_clip: float = Field(default=0.5, ge=0)
    """Largest magnitude of the noise in targets."""
