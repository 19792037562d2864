"""The loss of quantile regression, for critics and Q-networks that estimate the distribution of the return.

A network's M outputs estimate the quantiles of the return at M levels. Their loss against T samples of the target
compares all pairs, so written directly it makes several passes over B x M x T numbers. With sorted samples, each
quantile's sum over T is a difference of prefix sums, and only the places where it changes are searched for.

Shapes: B batch, M estimated quantiles, T samples of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HUBER_DELTA = 1.0
"""Larger errors count linearly, so that a distant target does not pull harder than one at this distance; a formula
below that has a 1 or a half stands for this value."""


def midpoint_levels(count: int, device: torch.device) -> Tensor:
    """Returns the levels (2 i + 1) / (2 M) for i < M, whose quantiles approximate a distribution best, float64 [M].

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", lemma 2.
    """
    return (torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count


def quantile_huber(quantiles_BM: Tensor, sorted_BT: Tensor, levels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the loss of each quantile, the mean over the samples, and its derivative with respect to the quantile.

    The loss of quantile q at level p against a sample t is |p - 1(t < q)| h(t - q), where h is the Huber loss: the
    error's square over two up to 1, and linear beyond.

    Args:
        quantiles_BM: Estimated quantiles.
        sorted_BT: Samples of the target, ascending in each row.
        levels_M: Level of each quantile, float64.

    Returns:
        Losses and derivatives, [B, M] each, in the dtype of the quantiles. They are computed in float64, because the
        prefix sums of large values cancel.

    Source: Dabney et al. 2018, equation 10.
    """
    q_BM, t_BT, samples = quantiles_BM.double(), sorted_BT.double(), sorted_BT.shape[1]
    edges = torch.cat((q_BM - HUBER_DELTA, q_BM, q_BM + HUBER_DELTA), 1)  # [B, 3 M]
    places = torch.searchsorted(t_BT, edges)
    counts_B3M = places.double().view(len(places), 3, -1)
    sums_B3M, squares_B3M = (_sum_first(x_BT, places) for x_BT in (t_BT, t_BT**2))

    # The samples near the quantile, below and above it: their number, and the sums of errors t - q and their squares.
    near_B2M, q_B1M = counts_B3M.diff(dim=1), q_BM[:, None]
    errors_B2M = sums_B3M.diff(dim=1) - near_B2M * q_B1M
    squares_B2M = squares_B3M.diff(dim=1) - 2.0 * q_B1M * errors_B2M - near_B2M * q_B1M**2
    # The samples far below and far above it: their number, and the sums of |t - q|.
    far_below_BM, far_above_BM = counts_B3M[:, 0], samples - counts_B3M[:, 2]
    below_BM = far_below_BM * q_BM - sums_B3M[:, 0]
    above_BM = t_BT.sum(1, keepdim=True) - sums_B3M[:, 2] - far_above_BM * q_BM

    below_losses_BM = 0.5 * squares_B2M[:, 0] + below_BM - 0.5 * far_below_BM
    above_losses_BM = 0.5 * squares_B2M[:, 1] + above_BM - 0.5 * far_above_BM
    losses_BM = (1.0 - levels_M) * below_losses_BM + levels_M * above_losses_BM
    slopes_BM = (1.0 - levels_M) * (far_below_BM - errors_B2M[:, 0]) - levels_M * (errors_B2M[:, 1] + far_above_BM)
    return (losses_BM / samples).to(quantiles_BM.dtype), (slopes_BM / samples).to(quantiles_BM.dtype)


def _sum_first(x_BT: Tensor, places: Tensor) -> Tensor:
    """Returns the sum of the numbers before each place of a row, [B, 3, M]; places [B, 3 M] are from 0 to T."""
    prefix_sums = nn.functional.pad(x_BT.cumsum(1), (1, 0))
    return prefix_sums.gather(1, places).view(len(places), 3, -1)
