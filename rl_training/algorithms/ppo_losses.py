"""PPO's losses and their written-out gradients, for arrays of NumPy or torch.

Shapes: B batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.networks.backend import Array


def clipped_surrogate_loss(ratios_B: Array, advantages_B: Array, clip_range: Array, xp: Any) -> tuple[Array, Array]:
    """Returns minus the mean of the pessimistic surrogate (Schulman et al. 2017, equation 7), and its gradient [B].

    A ratio beyond the clip has no gradient if the clipped surrogate is the smaller one.
    """
    plain_B = ratios_B * advantages_B
    clipped_B = xp.clip(ratios_B, 1.0 - clip_range, 1.0 + clip_range) * advantages_B
    surrogate_B = xp.minimum(plain_B, clipped_B)
    return -surrogate_B.sum() / len(ratios_B), (plain_B <= clipped_B) * advantages_B * (-1.0 / len(advantages_B))


def clipped_value_loss(
    values_B: Array, old_B: Array, returns_B: Array, value_clip: float | None, xp: Any
) -> tuple[Array, Array]:
    """Returns the mean squared error, without a factor of one half, and its gradient with respect to the values [B].

    With `value_clip`, each squared error is the larger of two: that of the value, and that of the value clipped to
    within `value_clip` of the rollout's value.
    """
    errors_B = values_B - returns_B
    slopes_B = errors_B
    if value_clip is not None:
        moves_B = values_B - old_B
        kept_B = old_B + xp.clip(moves_B, -value_clip, value_clip) - returns_B
        kept_is_worse_B = xp.square(kept_B) > xp.square(errors_B)
        # If the clipped error is larger, it depends on the value only within the clip.
        slopes_B = errors_B * ~kept_is_worse_B + kept_B * (kept_is_worse_B & (xp.abs(moves_B) <= value_clip))
        errors_B = xp.where(kept_is_worse_B, kept_B, errors_B)
    return (errors_B * errors_B).sum() / len(values_B), slopes_B * (2.0 / len(values_B))


def normalize_advantages(advantages_B: np.ndarray) -> np.ndarray:
    """Returns advantages with mean 0 and deviation 1; a single advantage has no deviation and is returned unchanged.

    The computation is in float64, in which the mean of equal advantages is exact, so that they become zeros. In float32
    their rounding errors would be scaled up to the size of a real signal.
    """
    if len(advantages_B) < 2:
        return advantages_B
    centred_B = advantages_B.astype(np.float64)
    centred_B -= centred_B.mean()
    deviation = math.sqrt(centred_B @ centred_B / (len(centred_B) - 1))
    return (centred_B / (deviation + 1e-8)).astype(advantages_B.dtype)
