"""The common base of the algorithms: how a trainer saves, restores and fine-tunes everything that they learn.

Shapes: N environments, O observation dims, A action dims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.algorithms.training_state import load_fields, save_fields
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.networks.flat import FlatParameters, Layers


class NetworkAlgorithm(ABC):
    """An algorithm whose policy is a network; it knows no environment, file or logger."""

    parameters: FlatParameters
    """The weights that acting needs."""
    state: Any
    """A dataclass with everything else that training changes; a checkpoint holds all of its fields."""

    @abstractmethod
    def act_greedy(self, observation: np.ndarray) -> np.ndarray:
        """Returns the best actions [N, *A] for normalised observations [N, *O]."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns copies of the weights that acting needs, by name."""
        return self.parameters.state_dict()

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores the weights that `policy_state` returned.

        Raises:
            CheckpointError: The weights belong to another network.
        """
        self.parameters.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of everything that training changes besides these weights, by name."""
        return save_fields(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            CheckpointError: The state belongs to other networks, or a value is not valid.
        """
        load_fields(self.state, state)

    def carry_over(self, weights: Mapping[str, Tensor], training: Mapping[str, Any] | None) -> Layers:
        """Copies the layers that fit from another agent, to begin training with them.

        Args:
            weights: The other agent's `policy_state`.
            training: The other agent's `state_dict`; None if it is not known.

        Raises:
            CheckpointError: No layer of the policy fits.
        """
        return self.parameters.load_layers_that_fit(weights)


class OffPolicyAlgorithm(NetworkAlgorithm):
    """An algorithm that learns from replayed transitions."""

    @property
    def replay_rng(self) -> np.random.Generator:
        """The random stream that draws batches."""
        rng: np.random.Generator = self.state.replay_rng
        return rng

    @property
    def batches_ahead(self) -> tuple[int, int]:
        """The fewest batches that are worth drawing together for `look_ahead`, and the most."""
        return 1, 1

    def look_ahead(self, batches: ReplayBatch, first: int) -> ReplayBatch:
        """Returns several batches as one, with what is computed for all of them before the first one's update.

        Args:
            batches: The batches.
            first: Number of the first one's update in the run.
        """
        return batches

    @abstractmethod
    def act(self, observation: np.ndarray, num_timesteps: int) -> np.ndarray:
        """Returns exploring actions [N, *A] for normalised observations [N, *O]."""

    @abstractmethod
    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step; returns its metrics by their tracked names."""
