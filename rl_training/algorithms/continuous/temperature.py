"""The weight of the entropy in SAC, fixed or learned (Haarnoja et al. 2018b, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig
from rl_training.networks.adam import FlatAdam


@dataclass
class Temperature:
    """The weight of the entropy, alpha, which is fixed or learned as its logarithm."""

    log_alpha: Tensor
    """The logarithm of alpha, float64 [1]; minus infinity for a fixed alpha of 0. Checkpoints hold it."""
    optimizer: FlatAdam | None
    """Adam of log alpha; None if alpha is fixed."""
    target_entropy: float
    """The entropy that a learned alpha aims for."""

    def __post_init__(self) -> None:
        """Keeps a fixed alpha, which the settings decide, when a checkpoint with another one is restored."""
        self._fixed = math.exp(float(self.log_alpha)) if self.optimizer is None else None

    @property
    def alpha(self) -> float:
        """The weight of the entropy."""
        return math.exp(float(self.log_alpha)) if self._fixed is None else self._fixed

    def step(self, logprob: float, learning_rate: float) -> float:
        """Takes a gradient step on log alpha; returns the loss before the step.

        Args:
            logprob: The mean log-density of the policy's actions.
            learning_rate: Adam's step size.
        """
        error = logprob + self.target_entropy
        loss = -float(self.log_alpha) * error
        assert self.optimizer is not None
        self.optimizer.step(self.log_alpha, torch.full_like(self.log_alpha, -error), learning_rate)
        return loss


def make_temperature(config: MaximumEntropyConfig, action_dims: int) -> Temperature:
    """Returns the initial temperature; it lives on the CPU because it is a single number."""
    target_entropy = -float(action_dims) if config.target_entropy == "auto" else config.target_entropy
    learned = config.entropy_coef == "auto"
    start = config.initial_entropy_coef if config.entropy_coef == "auto" else config.entropy_coef
    log_alpha = torch.tensor([start], dtype=torch.float64).log()
    return Temperature(log_alpha, FlatAdam(log_alpha) if learned else None, target_entropy)
