"""Action distributions: sampling for acting; log-probability and entropy, with their gradients, for learning.

The outputs of the policy head are the parameters of a distribution. An action is a function of the outputs and of noise
that does not depend on them, so the noise of many steps can be drawn before the first one. Shapes: S steps, B batch (or
environments), A action dims, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training.networks.backend import NUMPY, Array, Backend, softplus

LOG_2PI = math.log(2.0 * math.pi)
FORBIDDEN = -1e30
"""Logit of a choice that a mask forbids: its probability, gradient and part of the entropy are exactly 0."""
MOST_NOISE = 1e3
"""Bound of Gumbel variables: more than they reach if none is infinite, and too little for a forbidden choice."""


class ActionEvaluation(NamedTuple):
    """Log-probabilities and entropies of given actions, with the backward pass."""

    logprobs_B: Array
    """Log-probability of each action."""
    entropies_B: Array
    """Entropy of the distribution of each action."""
    backward: Callable[[Array, float], Array]
    """Returns the loss's gradient with respect to the outputs, [B, K], given the gradients with respect to the
    log-probabilities, [B], and to every entropy, one number. Overwrites the gradient of the distribution's parameters.
    """


class Distribution(nn.Module):
    """A family of distributions over actions.

    Attributes:
        outputs: Number of outputs that the policy head must have (K).
    """

    outputs: int
    backend: Backend

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        self.backend = backend

    def evaluate_actions(self, outputs_BK: Array, actions: Array) -> ActionEvaluation:
        """Returns the log-probability of each action, the entropy of its distribution, and the backward pass."""
        raise NotImplementedError

    def draw_noise(self, steps: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draws the noise of S steps for `choose`, [S, B, K]: the same numbers as S draws of one step each."""
        raise NotImplementedError

    def choose(self, outputs_BK: np.ndarray, noise_BK: np.ndarray) -> np.ndarray:
        """Returns the actions that the noise of one step draws."""
        raise NotImplementedError

    def log_probs(self, outputs_SBK: np.ndarray, actions: np.ndarray, noise_SBK: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities of what `choose` returned, [S, B]; no bit depends on the number of steps."""
        raise NotImplementedError

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws actions."""
        return self.choose(outputs_BK, self.draw_noise(1, len(outputs_BK), rng)[0])

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the most probable actions."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Returns metrics of the distribution's own parameters."""
        return {}


class Categorical(Distribution):
    """A choice among n actions, int64 [B]; the outputs are logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.outputs = n

    def evaluate_actions(self, outputs_BK: Array, actions: Array) -> ActionEvaluation:
        """Takes the log-softmax at the action; the entropy is minus its expectation."""
        backend, xp, rows = self.backend, self.backend.xp, self.backend.rows(len(actions))
        log_probs_BK = outputs_BK - backend.row_max(outputs_BK)[:, None]
        log_probs_BK -= xp.log(backend.row_sums(xp.exp(log_probs_BK)))[:, None]
        probs_BK = xp.exp(log_probs_BK)
        entropies_B = -backend.row_sums(probs_BK * log_probs_BK)

        def backward(d_logprobs_B: Array, d_entropy: float) -> Array:
            d_outputs_BK = -probs_BK * (d_logprobs_B[:, None] + d_entropy * (log_probs_BK + entropies_B[:, None]))
            d_outputs_BK[rows, actions] += d_logprobs_B
            return d_outputs_BK

        return ActionEvaluation(log_probs_BK[rows, actions], entropies_B, backward)

    def draw_noise(self, steps: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draws standard Gumbel variables, float32: minus the logarithms of exponential ones."""
        return _to_gumbel(rng.standard_exponential((steps, batch, self.outputs)))

    def choose(self, outputs_BK: np.ndarray, noise_BK: np.ndarray) -> np.ndarray:
        """Takes the largest sum of logit and Gumbel variable: with the probability of the action (Gumbel-max trick)."""
        actions: np.ndarray = (outputs_BK + noise_BK).argmax(axis=1)
        return actions

    def log_probs(self, outputs_SBK: np.ndarray, actions: np.ndarray, noise_SBK: np.ndarray) -> np.ndarray:
        """Takes the log-softmax at the action."""
        rows_RK = outputs_SBK.reshape(-1, self.outputs)
        log_probs_SBK = (rows_RK - NUMPY.row_max(rows_RK)[:, None]).reshape(outputs_SBK.shape)
        # A product for each step, because the bits of a product may depend on its number of rows.
        sums_SB = np.exp(log_probs_SBK) @ np.ones(self.outputs, log_probs_SBK.dtype)
        chosen_SB = np.take_along_axis(log_probs_SBK, actions[..., None], axis=-1)[..., 0]
        log_probs_SB: np.ndarray = chosen_SB - np.log(sums_SB)
        return log_probs_SB

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the action with the largest logit."""
        actions: np.ndarray = outputs_BK.argmax(axis=1)
        return actions


class MultiCategorical(Distribution):
    """Independent choices, int64 [B, A]; the outputs are the concatenated logits of the choices."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self.outputs = sum(choices)
        self.parts = [Categorical(n) for n in choices]
        ends = np.cumsum(choices).tolist()
        self.slices = [slice(end - n, end) for n, end in zip(choices, ends, strict=True)]

    def bind(self, backend: Backend) -> None:
        """Makes the distribution compute with a backend."""
        super().bind(backend)
        for part in self.parts:
            part.bind(backend)

    def evaluate_actions(self, outputs_BK: Array, actions: Array) -> ActionEvaluation:
        """Sums log-probabilities and entropies over the choices."""
        each = [
            part.evaluate_actions(outputs_BK[:, place], actions[:, a])
            for a, (part, place) in enumerate(zip(self.parts, self.slices, strict=True))
        ]

        def backward(d_logprobs_B: Array, d_entropy: float) -> Array:
            return self.backend.xp.concatenate([part.backward(d_logprobs_B, d_entropy) for part in each], 1)

        return ActionEvaluation(sum(part.logprobs_B for part in each), sum(part.entropies_B for part in each), backward)

    def draw_noise(self, steps: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draws, in each step, the noise of one choice for the whole batch after that of another."""
        drawn = rng.standard_exponential((steps, batch * self.outputs))
        parts = [drawn[:, batch * at.start : batch * at.stop].reshape(steps, batch, -1) for at in self.slices]
        return _to_gumbel(np.concatenate(parts, axis=2))

    def choose(self, outputs_BK: np.ndarray, noise_BK: np.ndarray) -> np.ndarray:
        """Draws each choice."""
        races_BK = outputs_BK + noise_BK
        return np.stack([races_BK[:, place].argmax(axis=1) for place in self.slices], axis=1)

    def log_probs(self, outputs_SBK: np.ndarray, actions: np.ndarray, noise_SBK: np.ndarray) -> np.ndarray:
        """Sums the log-probabilities of the choices."""
        each = [
            part.log_probs(outputs_SBK[..., place], actions[..., a], noise_SBK[..., place])
            for a, (part, place) in enumerate(zip(self.parts, self.slices, strict=True))
        ]
        sums_SB: np.ndarray = np.stack(each).sum(axis=0)
        return sums_SB

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the option with the largest logit in each choice."""
        return np.stack([outputs_BK[:, place].argmax(axis=1) for place in self.slices], axis=1)


class Bernoulli(Distribution):
    """Independent bits, int8 [B, A]; the outputs are the logits of a 1."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.outputs = bits

    def evaluate_actions(self, outputs_BK: Array, actions: Array) -> ActionEvaluation:
        """Sums log-probabilities and entropies over the bits."""
        xp = self.backend.xp
        bits_BA = self.backend.numbers(actions, outputs_BK)
        log_zero_BA = -softplus(xp, outputs_BK)  # log-probability of a 0
        ones_BA = xp.exp(outputs_BK + log_zero_BA)  # probability of a 1
        logprobs_B = self.backend.row_sums(bits_BA * outputs_BK + log_zero_BA)
        entropies_B = -self.backend.row_sums(ones_BA * outputs_BK + log_zero_BA)

        def backward(d_logprobs_B: Array, d_entropy: float) -> Array:
            d_entropies_BA = -outputs_BK * ones_BA * xp.exp(log_zero_BA)
            return d_logprobs_B[:, None] * (bits_BA - ones_BA) + d_entropy * d_entropies_BA

        return ActionEvaluation(logprobs_B, entropies_B, backward)

    def draw_noise(self, steps: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draws standard logistic variables."""
        return rng.logistic(size=(steps, batch, self.outputs))

    def choose(self, outputs_BK: np.ndarray, noise_BK: np.ndarray) -> np.ndarray:
        """Draws each bit: a logistic variable is below the logit with the probability of a 1."""
        return (noise_BK < outputs_BK).astype(np.int8)

    def log_probs(self, outputs_SBK: np.ndarray, actions: np.ndarray, noise_SBK: np.ndarray) -> np.ndarray:
        """Sums the log-probabilities of the bits."""
        signed_SBK = np.where(actions, outputs_SBK, -outputs_SBK)
        sums_SB: np.ndarray = -np.logaddexp(0.0, -signed_SBK, dtype=np.float32).sum(axis=-1)
        return sums_SB

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns 1 for each bit whose probability exceeds one half."""
        return (outputs_BK > 0).astype(np.int8)


class DiagGaussian(Distribution):
    """Independent normals, float32 [B, A]; the outputs are means, the log standard deviations parameters [A]."""

    def __init__(self, dims: int, initial_log_std: float) -> None:
        super().__init__()
        self.outputs = dims
        self.log_std = nn.Parameter(torch.full((dims,), initial_log_std))

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""
        super().bind(backend)
        assert self.log_std.grad is not None
        self._log_std, self._d_log_std = backend.view(self.log_std), backend.view(self.log_std.grad)

    def evaluate_actions(self, outputs_BK: Array, actions: Array) -> ActionEvaluation:
        """Sums log-probabilities over the dims; the entropy is the same for every state."""
        xp, log_std_A = self.backend.xp, self._log_std
        precisions_A = xp.exp(-log_std_A)
        deviates_BA = (actions - outputs_BK) * precisions_A
        logprobs_B = self.backend.row_sums(-0.5 * deviates_BA * deviates_BA - (log_std_A + 0.5 * LOG_2PI))
        entropies_B = (log_std_A + 0.5 * (1.0 + LOG_2PI)).sum() + xp.zeros_like(logprobs_B)

        def backward(d_logprobs_B: Array, d_entropy: float) -> Array:
            self._d_log_std[:] = d_logprobs_B @ (deviates_BA * deviates_BA - 1.0) + d_entropy * len(d_logprobs_B)
            return d_logprobs_B[:, None] * deviates_BA * precisions_A

        return ActionEvaluation(logprobs_B, entropies_B, backward)

    def draw_noise(self, steps: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draws standard normal variables, float32."""
        return rng.standard_normal((steps, batch, self.outputs), dtype=np.float32)

    def choose(self, outputs_BK: np.ndarray, noise_BK: np.ndarray) -> np.ndarray:
        """Returns mean + deviation * standard normal, unclipped."""
        deviations_A = np.exp(self.backend.numpy(self._log_std))
        actions: np.ndarray = outputs_BK + deviations_A * noise_BK
        return actions

    def log_probs(self, outputs_SBK: np.ndarray, actions: np.ndarray, noise_SBK: np.ndarray) -> np.ndarray:
        """Sums the log-densities over the dims."""
        normalizer_A = self.backend.numpy(self._log_std) + np.float32(0.5 * LOG_2PI)
        sums_SB: np.ndarray = (-0.5 * noise_SBK * noise_SBK - normalizer_A).sum(axis=-1)
        return sums_SB

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the means."""
        return outputs_BK.copy()

    def metrics(self) -> dict[str, float]:
        """Returns `std`, the mean of the standard deviations."""
        return {"std": float(self.log_std.detach().exp().mean())}


@np.errstate(divide="ignore")  # a variable of 0 would become infinite
def _to_gumbel(exponential: np.ndarray) -> np.ndarray:
    """Returns standard Gumbel variables, float32, from standard exponential ones."""
    gumbel: np.ndarray = np.minimum(-np.log(exponential), MOST_NOISE).astype(np.float32)
    return gumbel


def make_distribution(space: gym.Space[Any], initial_log_std: float) -> Distribution:
    """Returns the distribution over the actions of a space.

    Raises:
        TypeError: No distribution exists for this kind of space.
    """
    match space:
        case gym.spaces.Discrete():
            return Categorical(int(space.n))
        case gym.spaces.MultiDiscrete():
            return MultiCategorical([int(n) for n in space.nvec.flatten()])
        case gym.spaces.MultiBinary():
            return Bernoulli(math.prod(space.shape))
        case gym.spaces.Box():
            return DiagGaussian(math.prod(space.shape), initial_log_std)
    raise TypeError(f"no distribution over {space}; expected Discrete, MultiDiscrete, MultiBinary or Box")
