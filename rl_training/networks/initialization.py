"""Draws initial weights from numpy generators, so that no run depends on torch's global random state."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of hidden layers and convolutions."""
RECURRENT_GAIN = 1.0
"""Gain of recurrent layers, whose outputs enter them again."""
POLICY_GAIN = 0.01
"""Gain of the policy head; a small gain makes the first policy nearly uniform."""
VALUE_GAIN = 1.0
"""Gain of the value head."""


def orthogonal_(weight: Tensor, gain: float, rng: np.random.Generator) -> None:
    """Fills a matrix with `gain` times a random matrix whose rows or columns, whichever are fewer, are orthonormal.

    Args:
        weight: Matrix [I, O], or a convolution [O, C, H, W], which is treated as [O, C * H * W].
        gain: The singular value of all dimensions.
        rng: Generator of the stream `init`.

    Source: Saxe et al. 2014, section 3; gains: Huang et al. 2022, core detail 2.
    """
    rows, columns = weight.shape[0], weight[0].numel()
    gaussian = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(gaussian)
    q *= np.sign(np.diag(r))  # makes the distribution uniform, because QR leaves the signs arbitrary
    matrix = q if rows >= columns else q.T
    with torch.no_grad():
        weight.copy_(torch.from_numpy(gain * matrix).reshape(weight.shape))
