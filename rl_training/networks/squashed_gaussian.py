"""A Gaussian squashed into [-1, 1] by the hyperbolic tangent, with its gradient written out.

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
"""The log deviation is cut to these (Haarnoja et al. 2018b, as in their code)."""
LOG_2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class SquashedSample:
    """Actions drawn by reparametrisation: a function of the policy's outputs and of noise."""

    actions_BA: Array
    """tanh of the Gaussian's draw."""
    logprobs_B: Array
    """Their log-density."""
    deviations_BA: Array
    """The draw's distance from its mean: the deviation times the noise."""
    free_BA: Array
    """1 where the log deviation was not cut, 0 where it was."""

    def backward(self, d_actions_BA: Array, d_logprob: float, xp: Any) -> Array:
        """Returns the gradient by the outputs, [B, 2A].

        Args:
            d_actions_BA: The loss's gradient by the actions.
            d_logprob: That by the log-density of each.
            xp: The module whose arrays these are.
        """
        # d tanh(u) / du = 1 - a^2, and d log p / du = 2 a: all that is left of the Gaussian is its deviation.
        slopes_BA = (1.0 - self.actions_BA) * (1.0 + self.actions_BA)
        d_means_BA = d_actions_BA * slopes_BA + 2.0 * d_logprob * self.actions_BA
        d_log_stds_BA = (d_means_BA * self.deviations_BA - d_logprob) * self.free_BA
        return xp.concatenate((d_means_BA, d_log_stds_BA), 1)


def sample(outputs: Array, noise_BA: Array, backend: Backend) -> SquashedSample:
    """Returns tanh(mean + deviation * noise) and its log-density.

    Args:
        outputs: [B, 2A] of the policy.
        noise_BA: Standard normal draws.
        backend: Whose arrays these are.

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
    """Returns log(1 - tanh(u)^2), exact however large u is: 2 (log 2 - u - softplus(-2u))."""
    return 2.0 * (LOG_2 - draws - softplus(xp, -2.0 * draws))


def draw(outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws actions float32 [N, A] for acting, from outputs [N, 2A]."""
    means_NA, log_stds_NA = np.split(outputs, 2, axis=1)
    noise_NA = rng.standard_normal(means_NA.shape, dtype=np.float32)
    actions: np.ndarray = np.tanh(means_NA + np.exp(np.clip(log_stds_NA, LOG_STD_MIN, LOG_STD_MAX)) * noise_NA)
    return actions


def mode(outputs: np.ndarray) -> np.ndarray:
    """Returns tanh of the mean, the action float32 [N, A] without noise."""
    actions: np.ndarray = np.tanh(np.split(outputs, 2, axis=1)[0])
    return actions
