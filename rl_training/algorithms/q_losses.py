"""The targets and losses of Q-learning, for a network of values or of quantiles of the return; their weights.

Shapes: B batch, M quantiles; [M] stands for an axis that only quantiles have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor

from rl_training.algorithms.quantile_loss import HUBER_DELTA, midpoint_levels, quantile_huber
from rl_training.networks.backend import Array, Backend

Loss: TypeAlias = Callable[[Array, Array], tuple[Array, Array, Array]]
"""Takes estimates and their targets, [B, [M]] each; returns the loss of each transition, [B], its derivative with
respect to the estimates, [B, [M]], and the error that prioritized replay draws the transition by, [B]."""


def make_loss(quantiles: int, backend: Backend) -> Loss:
    """Returns the loss of a network of so many quantiles; 0 means values."""
    if not quantiles:
        return huber
    return partial(quantile_regression, levels_M=midpoint_levels(quantiles, backend.device), backend=backend)


def add_rewards(rewards_B: Array, discounts_B: Array, next_values: Array) -> Array:
    """Returns the targets r + discount * z, [B, [M]], given the values or quantiles z of the next state."""
    if next_values.ndim == 2:
        rewards_B, discounts_B = rewards_B[:, None], discounts_B[:, None]
    return rewards_B + discounts_B * next_values


def weigh(losses_B: Array, slopes: Array, weights_B: Array) -> tuple[Array, Array]:
    """Returns losses and their derivatives, [B, [M]], times the weight of each transition."""
    return losses_B * weights_B, slopes * (weights_B[:, None] if slopes.ndim == 2 else weights_B)


def importance_weights(priorities_B: Array, beta: float) -> Array:
    """Returns the weights that correct for drawing by priorities, [B]; the largest one of the batch is 1.

    A weight is (N P) ** -beta, where N is the number of transitions and P is a transition's share of all priorities.
    Divided by the largest weight of the batch, both N and the sum of all priorities cancel.

    Source: Schaul et al. 2016, section 3.4.
    """
    return (priorities_B.min() / priorities_B) ** beta


def huber(values_B: Array, targets_B: Array) -> tuple[Array, Array, Array]:
    """Returns the Huber loss: the error's square over two up to `HUBER_DELTA`, and linear beyond. See `Loss`.

    Prioritized replay draws by the error itself (Schaul et al. 2016, section 3.3).
    """
    errors_B = values_B - targets_B
    slopes_B = errors_B.clip(-HUBER_DELTA, HUBER_DELTA)
    return slopes_B * (errors_B - 0.5 * slopes_B), slopes_B, errors_B


def quantile_regression(
    quantiles_BM: Array, targets_BM: Array, levels_M: Tensor, backend: Backend
) -> tuple[Array, Array, Array]:
    """Returns the quantile Huber loss: the sum over the quantiles of their mean over the targets. See `Loss`.

    Prioritized replay draws by the mean of the loss over the quantiles, which does not depend on their number.

    Source: Dabney et al. 2018, algorithm 1.
    """
    samples_BM = backend.tensor(backend.sort_rows(targets_BM))
    losses_BM, slopes_BM = quantile_huber(backend.tensor(quantiles_BM), samples_BM, levels_M)
    losses_B = backend.view(losses_BM.sum(1))
    return losses_B, backend.view(slopes_BM), losses_B * (1.0 / len(levels_M))
