"""Initial weights, drawn from numpy generators so that torch's global random state plays no part in a run."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of hidden layers and convolutions."""
POLICY_GAIN = 0.01
"""Gain of the policy head: the first policy is close to uniform."""
VALUE_GAIN = 1.0
"""Gain of the value head."""


def orthogonal_(weight: Tensor, gain: float, rng: np.random.Generator) -> None:
    """Fills a matrix with `gain` times a random one of orthonormal rows or columns, whichever are fewer.

    Args:
        weight: [I, O], or a convolution [O, C, H, W], which is taken as [O, C * H * W].
        gain: The common singular value.
        rng: The stream `init`.

    Source: Saxe et al. 2014, section 3; gains: Huang et al. 2022, core detail 2.
    """
    rows, columns = weight.shape[0], weight[0].numel()
    gaussian = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(gaussian)
    q *= np.sign(np.diag(r))  # makes the distribution uniform: QR alone fixes no signs
    matrix = q if rows >= columns else q.T
    with torch.no_grad():
        weight.copy_(torch.from_numpy(gain * matrix).reshape(weight.shape))
