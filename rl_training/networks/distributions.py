"""Action distributions: sampling for acting; log-probability and entropy, with their gradients, for learning.

The outputs of the policy head are the parameters of a distribution. Shapes: B batch (or environments), A action dims, K
outputs.
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

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws actions, and returns them with their log-probabilities, float32 [B]."""
        raise NotImplementedError

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

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws by exponential races: a time with rate p is the smallest with probability p."""
        log_probs = outputs_BK - NUMPY.row_max(outputs_BK)[:, None]
        probs = np.exp(log_probs)
        actions: np.ndarray = (probs / rng.standard_exponential(probs.shape)).argmax(axis=1)
        return actions, log_probs[NUMPY.rows(len(actions)), actions] - np.log(NUMPY.row_sums(probs))

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

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws each choice."""
        pairs = [part.sample(outputs_BK[:, place], rng) for part, place in zip(self.parts, self.slices, strict=True)]
        actions, log_probs = zip(*pairs, strict=True)
        return np.stack(actions, axis=1), np.stack(log_probs).sum(axis=0)

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

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws each bit: a logistic variable is below the logit with the probability of a 1."""
        actions = rng.logistic(size=outputs_BK.shape) < outputs_BK
        signed = np.where(actions, outputs_BK, -outputs_BK)
        return actions.astype(np.int8), -np.logaddexp(0.0, -signed, dtype=np.float32).sum(axis=1)

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

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws mean + deviation * standard normal, unclipped."""
        log_std = self.backend.numpy(self._log_std)
        deviates = rng.standard_normal(outputs_BK.shape, dtype=np.float32)
        log_probs = (-0.5 * deviates * deviates - (log_std + np.float32(0.5 * LOG_2PI))).sum(axis=1)
        return outputs_BK + np.exp(log_std) * deviates, log_probs

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the means."""
        return outputs_BK.copy()

    def metrics(self) -> dict[str, float]:
        """Returns `std`, the mean of the standard deviations."""
        return {"std": float(self.log_std.detach().exp().mean())}


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
