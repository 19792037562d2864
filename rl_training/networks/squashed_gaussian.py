"""A Gaussian squashed into [-1, 1] by the hyperbolic tangent, with a written-out gradient.

Shapes: B batch (or environments), A action dims. The policy's 2A outputs are the means and the log deviations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.networks.backend import Array, Backend, softplus
from rl_training.networks.distributions import LOG_2PI

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds to which the log deviation is clipped, as in the code of Haarnoja et al. 2018b."""
LOG_2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class SquashedSample:
    """Actions as a function of the policy's outputs and of noise (the reparametrisation trick)."""

    actions_BA: Array
    """tanh of the draws from the Gaussian."""
    logprobs_B: Array
    """Log-density of each action."""
    deviations_BA: Array
    """Distance of each draw from its mean: the deviation times the noise."""
    free_BA: Array
    """0 where the log deviation was clipped, 1 elsewhere."""

    def backward(self, d_actions_BA: Array, d_logprob: float, xp: Any) -> Array:
        """Returns the gradient of the loss with respect to the outputs, [B, 2A].

        Args:
            d_actions_BA: Gradient of the loss with respect to the actions.
            d_logprob: Gradient of the loss with respect to each log-density, one number for all.
            xp: The module numpy or torch, according to the arrays.
        """
        # d tanh(u) / du = 1 - a^2, and d log p / du = 2 a: given the noise, the Gaussian's density depends only on the
        # deviation.
        slopes_BA = (1.0 - self.actions_BA) * (1.0 + self.actions_BA)
        d_means_BA = d_actions_BA * slopes_BA + 2.0 * d_logprob * self.actions_BA
        d_log_stds_BA = (d_means_BA * self.deviations_BA - d_logprob) * self.free_BA
        return xp.concatenate((d_means_BA, d_log_stds_BA), 1)


def sample(outputs: Array, noise_BA: Array, backend: Backend) -> SquashedSample:
    """Returns tanh(mean + deviation * noise) and its log-density.

    Args:
        outputs: Outputs of the policy, [B, 2A].
        noise_BA: Standard normal draws.
        backend: Backend of the arrays.

    Source: Haarnoja et al. 2018b, appendix C.
    """
    xp, dims = backend.xp, noise_BA.shape[1]
    means_BA, raw_BA = outputs[:, :dims], outputs[:, dims:]
    log_stds_BA = xp.clip(raw_BA, LOG_STD_MIN, LOG_STD_MAX)
    deviations_BA = xp.exp(log_stds_BA) * noise_BA
    draws_BA = means_BA + deviations_BA
    gaussian_BA = -0.5 * noise_BA * noise_BA - log_stds_BA - 0.5 * LOG_2PI
    logprobs_B = backend.row_sums(gaussian_BA - log_slope(xp, draws_BA))
    free_BA = backend.numbers(raw_BA == log_stds_BA, raw_BA)
    return SquashedSample(xp.tanh(draws_BA), logprobs_B, deviations_BA, free_BA)


def log_slope(xp: Any, draws: Array) -> Array:
    """Returns log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact even for large u."""
    return 2.0 * (LOG_2 - draws - softplus(xp, -2.0 * draws))


def draw(outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws actions float32 [N, A] for acting, from outputs [N, 2A]."""
    means_NA, log_stds_NA = np.split(outputs, 2, axis=1)
    noise_NA = rng.standard_normal(means_NA.shape, dtype=np.float32)
    actions: np.ndarray = np.tanh(means_NA + np.exp(np.clip(log_stds_NA, LOG_STD_MIN, LOG_STD_MAX)) * noise_NA)
    return actions


def mode(outputs: np.ndarray) -> np.ndarray:
    """Returns the actions without noise, tanh of the means, float32 [N, A]."""
    actions: np.ndarray = np.tanh(np.split(outputs, 2, axis=1)[0])
    return actions
