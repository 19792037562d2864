"""The Q-network of DQN, plain or dueling, of values or of quantiles.

Shapes: B batch, K actions, M quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from rl_training.config.network import BodyConfig
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import ObservationLayout, Observations
from rl_training.networks.initialization import VALUE_GAIN
from rl_training.networks.observed_mlp import ObservedMLP


class QNetwork(nn.Module):
    """Q(s, a) for every action a, or the quantiles of the return whose mean Q(s, a) is.

    In the shapes below, [M] stands for an axis that only quantiles have.

    A dueling network has two MLPs on common features: one for the value of the state, and one for the advantages of the
    actions over their mean (Wang et al. 2016, equation 9), both with M quantiles. Its last output, the advantages, has
    the same best action as Q.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        actions: int,
        hidden: Sequence[int],
        activation: str,
        dueling: bool,
        quantiles: int,
        rng: np.random.Generator,
        body: BodyConfig | None = None,
    ) -> None:
        """Makes the network.

        Args:
            layout: Layout of the observations.
            actions: Number of actions (K).
            hidden: See `StackedMLP`.
            activation: See `StackedMLP`.
            dueling: Whether value and advantages have an MLP each.
            quantiles: Number of quantiles (M); 0 for values.
            rng: Generator of the stream `init`.
            body: See `ObservedMLP`.
        """
        super().__init__()
        self.dueling, self._actions, self._per_action = dueling, actions, (quantiles,) if quantiles else ()
        width = quantiles or 1
        outputs = (width, actions * width) if dueling else (actions * width,)
        self.observed = ObservedMLP(layout, 0, hidden, outputs, activation, [VALUE_GAIN] * len(outputs), rng, body)

    def best_actions(self, observations: Observations, allowed_BK: Array | None = None) -> Array:
        """Returns the action with the largest Q of each observation, [B], of those that a mask allows."""
        return self.score(self._by_action(self.observed.evaluate(observations)[-1]), allowed_BK).argmax(1)

    def expect(self, outputs: Array) -> Array:
        """Returns Q, [B, K], given the values or quantiles that this network returned, [B, K, [M]]."""
        return outputs.mean(2) if self._per_action else outputs

    def score(self, outputs: Array, allowed_BK: Array | None) -> Array:
        """Returns Q, [B, K], as `expect`, and minus infinity for the actions that a mask forbids."""
        values_BK = self.expect(outputs)
        return values_BK if allowed_BK is None else self.observed.backend.xp.where(allowed_BK, values_BK, -math.inf)

    def evaluate(self, observations: Observations) -> Array:
        """Returns values or quantiles, [B, K, [M]], without preparing for `backward`."""
        return self._combine(*self.observed.evaluate(observations))

    def evaluate_blocks(self, vectors_BO: Array, rows: int) -> Array:
        """Returns `evaluate` of vectors on the CPU, in products of `rows` rows each; B must be a multiple of `rows`."""
        outputs = self.observed.mlps.bound.evaluate_blocks(vectors_BO.reshape(-1, rows, vectors_BO.shape[1]))
        return self._combine(*(output.reshape(len(vectors_BO), -1) for output in outputs))

    def forward(self, observations: Observations) -> Array:
        """Returns values or quantiles, [B, K, [M]], and prepares for `backward`."""
        return self._combine(*self.observed(observations))

    def backward(self, d_outputs: Array) -> None:
        """Overwrites the gradients of all parameters, given that with respect to values or quantiles, [B, K, [M]]."""
        heads = (d_outputs.sum(1), d_outputs - d_outputs.mean(1)[:, None]) if self.dueling else (d_outputs,)
        self.observed.backward(*(d_head.reshape(len(d_outputs), -1) for d_head in heads))

    def _combine(self, *outputs: Array) -> Array:
        if not self.dueling:
            return self._by_action(outputs[0])
        value, advantages = outputs[0].reshape(-1, 1, *self._per_action), self._by_action(outputs[1])
        return value + advantages - advantages.mean(1)[:, None]

    def _by_action(self, output: Array) -> Array:
        """Returns the output of an MLP, [B, K M], as [B, K, [M]]."""
        return output.reshape(-1, self._actions, *self._per_action) if self._per_action else output
