"""The networks of policy and value function.

Shapes: N environments, B batch, K outputs of the policy head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.networks.distributions import Distribution
from rl_training.networks.feature_extractors import ObservationLayout, to_arrays
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.observed_mlp import ObservedMLP


class ActorCritic(ObservedMLP):
    """Two MLPs of equal hidden widths, policy [B, K] and value [B, 1], on the features of an observation.

    Images share their convolutions between the two MLPs; for vectors, the two share nothing.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        rng: np.random.Generator,
    ) -> None:
        outputs, gains = (distribution.outputs, 1), (POLICY_GAIN, VALUE_GAIN)
        super().__init__(layout, 0, hidden, outputs, activation, gains, rng)
        self.distribution = distribution

    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the policy's outputs [N, K], valid until the next evaluation, and a copy of the values [N]."""
        outputs_NK, values_N1 = self.evaluate(to_arrays(observations, self.backend))
        return self.backend.numpy(outputs_NK), self.backend.numpy(values_N1[:, 0]).copy()
