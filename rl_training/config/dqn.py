"""Settings of DQN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from rl_training.config.off_policy import OffPolicyConfig
from rl_training.config.settings import Settings


class ExplorationConfig(Settings):
    """Epsilon, the share of random actions: linear from start to end, then constant."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Epsilon at the first environment step."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Epsilon once the decay is over."""
    fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of total_timesteps that the decay takes."""


class QNetworkConfig(Settings):
    """Shape of the Q-network."""

    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), strict=False)
    """Widths of the hidden layers (after the convolutions, for images)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the hidden layers."""


class DQNConfig(OffPolicyConfig):
    """Deep Q-learning (Mnih et al. 2015), with Huber loss and Adam."""

    algo: Literal["dqn"] = "dqn"
    """The algorithm."""
    exploration: ExplorationConfig = ExplorationConfig()
    """Epsilon-greedy exploration, of each environment by itself."""
    target_update_every: PositiveInt = 500
    """Environment steps between two copies of the Q-network to the target network."""
    double: bool = False
    """The online network chooses the target's action and the target network values it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """The Q-network ends in a state value and advantages (Wang et al. 2016)."""
    max_grad_norm: float = Field(default=10.0, gt=0)
    """Bound on the norm of the gradient over all parameters jointly."""
    network: QNetworkConfig = QNetworkConfig()
    """The Q-network."""
