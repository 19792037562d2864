"""The settings of SAC."""

from __future__ import annotations

from typing import Literal

from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig


class SACConfig(MaximumEntropyConfig):
    """Soft Actor-Critic with a learned temperature (Haarnoja et al. 2018, "Algorithms and Applications")."""

    algo: Literal["sac"] = "sac"
    """The algorithm."""
