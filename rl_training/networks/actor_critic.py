"""Policy and value function as one module, and how it is evaluated for acting.

Shapes: B batch, N environments, K outputs of the policy head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.networks.bodies import ObservationLayout, Observations, VectorBody, make_body, to_tensors
from rl_training.networks.distributions import Distribution
from rl_training.networks.initialization import POLICY_GAIN, VALUE_GAIN
from rl_training.networks.mlp import NumpyMLP, StackedMLP


class ActorCritic(nn.Module):
    """Two MLPs of the same hidden widths, policy and value, on common features: those of the observation's body.

    A vector is its own features, so that the two share nothing; convolutions are shared.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self.body = make_body(layout, rng)
        outputs, gains = (distribution.outputs, 1), (POLICY_GAIN, VALUE_GAIN)
        self.mlps = StackedMLP(self.body.features, hidden, outputs, activation, gains, rng)
        self.distribution = distribution

    def forward(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Returns the policy's outputs [B, K] and the values [B]."""
        outputs_BK, values_B1 = self.mlps(self.body(observations))
        return outputs_BK, values_B1.squeeze(1)


class Actor:
    """Evaluates an `ActorCritic` on arrays, without gradients.

    MLPs on the CPU are evaluated by numpy on the same memory; anything else by torch.
    """

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.network, self.device = network, device
        numpy_can = device.type == "cpu" and isinstance(network.body, VectorBody)
        self._numpy = NumpyMLP(network.mlps) if numpy_can else None

    def __call__(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the policy's outputs [N, K], valid until the next call, and the values float32 [N]."""
        if self._numpy is not None:
            outputs_NK, values_N1 = self._numpy(observations)
            return outputs_NK, values_N1[:, 0].copy()
        with torch.no_grad():
            outputs, values = self.network(to_tensors(observations, self.device))
        return outputs.cpu().numpy(), values.cpu().numpy()
