"""The settings of DQN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rl_training.config.action_mask import MaskedActionsConfig
from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.network import MLPConfig
from rl_training.config.sections import Settings


class ExplorationConfig(Settings):
    """Schedule of epsilon, the probability of a random action: linear from start to end, then constant."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Epsilon at the first environment step."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Epsilon after the decay."""
    fraction: float = Field(default=0.1, ge=0, le=1)
    """Fraction of total_timesteps over which epsilon decays."""


class QNetworkConfig(MLPConfig):
    """Architecture of the Q-network."""

    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), strict=False)


class PrioritizedReplayConfig(Settings):
    """Replay in proportion to priorities (Schaul et al. 2016): (absolute TD error + epsilon) ** alpha."""

    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much errors count: 0 draws uniformly, 1 in proportion to the errors."""
    beta_start: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first step; 1 corrects for the priorities completely."""
    beta_end: float = Field(default=1.0, ge=0, le=1)
    """The exponent at total_timesteps; it changes linearly."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to each absolute error, so that every transition can be drawn."""

    def beta_at(self, progress: float) -> float:
        """Returns the exponent of the importance weights at a completed fraction of all timesteps."""
        return self.beta_start + (self.beta_end - self.beta_start) * progress


class DQNConfig(MaskedActionsConfig, OffPolicyConfig):
    """Deep Q-learning (Mnih et al. 2015), with Huber loss and Adam."""

    algo: Literal["dqn"] = "dqn"
    """The algorithm."""
    exploration: ExplorationConfig = ExplorationConfig()
    """Epsilon-greedy exploration, independent in each environment."""
    target_update_every: PositiveInt = 500
    """Environment steps between two copies of the Q-network to the target network."""
    double: bool = False
    """Double Q-learning (van Hasselt et al. 2016): the online network chooses the action of the target, and the target
    network evaluates it."""
    dueling: bool = False
    """Dueling architecture (Wang et al. 2016): the Q-network ends in a state value and advantages."""
    quantiles: NonNegativeInt = 0
    """Quantiles of the return that the Q-network estimates for each action, whose mean is the action's value, as in
    QR-DQN (Dabney et al. 2018); with 0 it estimates the value itself."""
    prioritized_replay: PrioritizedReplayConfig | None = None
    """Draws transitions of large errors more often; `{}` takes the defaults, null draws uniformly."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Adam's epsilon."""
    max_grad_norm: float = Field(default=10.0, gt=0)
    """Largest norm of the gradient over all parameters; a larger gradient is scaled down."""
    network: QNetworkConfig = QNetworkConfig()
    """The Q-network."""

    def epsilon_at(self, num_timesteps: int) -> float:
        """Returns the probability of a random action, as a function of the environment step alone.

        All actions are random before `learning_starts`. The decay is linear from step 0, over `exploration.fraction` of
        all steps.
        """
        exploration = self.exploration
        if num_timesteps < self.learning_starts:
            return 1.0
        decay = exploration.fraction * self.total_timesteps
        if num_timesteps >= decay:
            return exploration.end
        return exploration.start + (exploration.end - exploration.start) * num_timesteps / decay

    @property
    def outputs_per_action(self) -> int:
        """The number of outputs of the Q-network for each action."""
        return self.quantiles or 1

    @property
    def has_priorities(self) -> bool:
        """Whether the replay buffer holds a priority of each transition."""
        return self.prioritized_replay is not None
