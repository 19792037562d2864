"""The targets and losses of Q-learning, for a network of values or of quantiles of the return.

Shapes: B batch, M quantiles; [M] stands for an axis that only quantiles have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor

from rl_training.algorithms.quantile_loss import midpoint_levels, quantile_huber
from rl_training.networks.backend import Array, Backend

HUBER_DELTA = 1.0
"""Larger errors count linearly, so that a distant target does not pull harder than one at this distance."""

Loss: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""Takes estimates and their targets, [B, [M]] each; returns the loss of each transition, [B], and its derivative with
respect to the estimates, [B, [M]]."""


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


def huber(values_B: Array, targets_B: Array) -> tuple[Array, Array]:
    """Returns the Huber loss: the error's square over two up to `HUBER_DELTA`, and linear beyond. See `Loss`."""
    errors_B = values_B - targets_B
    slopes_B = errors_B.clip(-HUBER_DELTA, HUBER_DELTA)
    return slopes_B * (errors_B - 0.5 * slopes_B), slopes_B


def quantile_regression(
    quantiles_BM: Array, targets_BM: Array, levels_M: Tensor, backend: Backend
) -> tuple[Array, Array]:
    """Returns the quantile Huber loss: the sum over the quantiles of their mean over the targets. See `Loss`.

    Source: Dabney et al. 2018, algorithm 1.
    """
    samples_BM = backend.tensor(backend.sort_rows(targets_BM))
    losses_BM, slopes_BM = quantile_huber(backend.tensor(quantiles_BM), samples_BM, levels_M)
    return backend.view(losses_BM.sum(1)), backend.view(slopes_BM)
