"""The Q-network of DQN, plain or dueling.

Shapes: B batch, K actions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import ObservationLayout, Observations
from rl_training.networks.initialization import VALUE_GAIN
from rl_training.networks.observed_mlp import ObservedMLP


class QNetwork(nn.Module):
    """Q(s, a) for every action a.

    A dueling network has two MLPs on common features: one for the value of the state, and one for the advantages of the
    actions over their mean (Wang et al. 2016, equation 9). Its last output, the advantages, has the same best action as
    Q.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        actions: int,
        hidden: Sequence[int],
        activation: str,
        dueling: bool,
        rng: np.random.Generator,
    ) -> None:
        """Makes the network; if `dueling`, value and advantages have an MLP each. See `StackedMLP` for the others."""
        super().__init__()
        self.dueling = dueling
        outputs = (1, actions) if dueling else (actions,)
        self.observed = ObservedMLP(layout, 0, hidden, outputs, activation, [VALUE_GAIN] * len(outputs), rng)

    def evaluate(self, observations: Observations) -> Array:
        """Returns Q, [B, K], without preparing for `backward`."""
        return self._combine(*self.observed.evaluate(observations))

    def evaluate_blocks(self, vectors_BO: Array, rows: int) -> Array:
        """Returns Q, [B, K], of vectors on the CPU, in products of `rows` rows each; B must be a multiple of `rows`."""
        outputs = self.observed.mlps.bound.evaluate_blocks(vectors_BO.reshape(-1, rows, vectors_BO.shape[1]))
        return self._combine(*(output.reshape(len(vectors_BO), -1) for output in outputs))

    def forward(self, observations: Observations) -> Array:
        """Returns Q, [B, K], and prepares for `backward`."""
        return self._combine(*self.observed(observations))

    def backward(self, d_q_BK: Array) -> None:
        """Overwrites the gradients of all parameters, given the gradient with respect to Q, [B, K]."""
        if self.dueling:
            self.observed.backward(d_q_BK.sum(1)[:, None], d_q_BK - d_q_BK.mean(1)[:, None])
        else:
            self.observed.backward(d_q_BK)

    def _combine(self, *outputs: Array) -> Array:
        if not self.dueling:
            return outputs[0]
        value_B1, advantages_BK = outputs
        return value_B1 + advantages_BK - advantages_BK.mean(1)[:, None]
