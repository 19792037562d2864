"""How much of the variance of the returns the value function explains.

Shapes: T steps, N environments.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.data.rollout_buffer import RolloutBuffer


def explained_variance(buffer: RolloutBuffer) -> dict[str, float]:
    """Returns 1 - Var(returns - values) / Var(returns) by its name; empty if the returns are constant."""
    returns_TN = buffer.returns[: buffer.position].astype(np.float64)
    errors_TN = returns_TN - buffer.values[: buffer.position]
    return explain_variance(float(returns_TN.var()), float(errors_TN.var()), float(np.abs(returns_TN).max()))


def explain_variance(variance: float, error_variance: float, largest: float) -> dict[str, float]:
    """Returns `explained_variance` from the variances of returns and errors, and the largest absolute return."""
    # Below this deviation, the returns differ only by the rounding of float32.
    if math.sqrt(variance) <= 1e-6 * largest:
        return {}
    return {"explained_variance": 1.0 - error_variance / variance}
