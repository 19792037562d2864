"""Action distributions: log-probability and entropy in torch, for learning; sampling in numpy, for acting.

Each is parametrised by the outputs of the policy head. Shapes: B batch (or environments), A action dims, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LOG_2PI = math.log(2.0 * math.pi)


class Distribution(nn.Module):
    """A family of distributions over actions.

    Attributes:
        outputs: K, the number of outputs that the policy head must have.
    """

    outputs: int

    def log_prob_and_entropy(self, outputs_BK: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probability of each action and the entropy of its distribution, [B] each."""
        raise NotImplementedError

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws actions; returns them and their log-probabilities, float32 [B]."""
        raise NotImplementedError

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """Returns the most probable actions."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Returns what is worth recording of the distribution's own parameters."""
        return {}


class Categorical(Distribution):
    """One of n actions, int64 [B]; outputs are logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.outputs = n

    def log_prob_and_entropy(self, outputs_BK: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-softmax at the action; minus its expectation."""
        log_probs = torch.log_softmax(outputs_BK, dim=1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), entropy

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Gumbel-max: the argmax of log-probabilities plus Gumbel noise (Maddison et al. 2014, section 2)."""
        log_probs = outputs_BK - outputs_BK.max(axis=1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
        gumbel = -np.log(rng.standard_exponential(log_probs.shape))
        actions = (log_probs + gumbel).argmax(axis=1)
        return actions, log_probs[np.arange(len(actions)), actions]

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """The largest logit."""
        actions: np.ndarray = outputs_BK.argmax(axis=1)
        return actions


class MultiCategorical(Distribution):
    """A independent choices, int64 [B, A]; outputs are their logits one after the other."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self.outputs = sum(choices)
        self.parts = [Categorical(n) for n in choices]
        ends = np.cumsum(choices).tolist()
        self.slices = [slice(end - n, end) for n, end in zip(choices, ends, strict=True)]

    def log_prob_and_entropy(self, outputs_BK: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the choices."""
        pairs = [
            part.log_prob_and_entropy(outputs_BK[:, place], actions[:, a])
            for a, (part, place) in enumerate(zip(self.parts, self.slices, strict=True))
        ]
        log_probs, entropies = zip(*pairs, strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws each choice."""
        pairs = [part.sample(outputs_BK[:, place], rng) for part, place in zip(self.parts, self.slices, strict=True)]
        actions, log_probs = zip(*pairs, strict=True)
        return np.stack(actions, axis=1), np.stack(log_probs).sum(axis=0)

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """The largest logit of each choice."""
        return np.stack([outputs_BK[:, place].argmax(axis=1) for place in self.slices], axis=1)


class Bernoulli(Distribution):
    """A independent bits, int8 [B, A]; outputs are the logits of one."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.outputs = bits

    def log_prob_and_entropy(self, outputs_BK: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the bits."""
        signs = 2.0 * actions.to(outputs_BK.dtype) - 1.0
        log_probs = functional.logsigmoid(signs * outputs_BK).sum(1)
        entropy = (functional.softplus(outputs_BK) - outputs_BK * outputs_BK.sigmoid()).sum(1)
        return log_probs, entropy

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws each bit: a logistic variable is below a logit with the probability of one."""
        actions = rng.logistic(size=outputs_BK.shape) < outputs_BK
        signed = np.where(actions, outputs_BK, -outputs_BK)
        return actions.astype(np.int8), -np.logaddexp(0.0, -signed, dtype=np.float32).sum(axis=1)

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """The bits that are more probable than not."""
        return (outputs_BK > 0).astype(np.int8)


class DiagGaussian(Distribution):
    """A independent normals, float32 [B, A]; outputs are means, the log deviations free parameters [A]."""

    def __init__(self, dims: int, initial_log_std: float) -> None:
        super().__init__()
        self.outputs = dims
        self.log_std = nn.Parameter(torch.full((dims,), initial_log_std))

    def log_prob_and_entropy(self, outputs_BK: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the dims; the entropy is that of any state."""
        deviates = (actions - outputs_BK) * torch.exp(-self.log_std)
        log_probs = (-0.5 * deviates * deviates - self.log_std - 0.5 * LOG_2PI).sum(1)
        entropy = (self.log_std + 0.5 * (1.0 + LOG_2PI)).sum()
        return log_probs, entropy.expand(len(actions))

    def sample(self, outputs_BK: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mean plus deviation times a standard normal; not clipped."""
        log_std = self.log_std.detach().cpu().numpy()
        deviates = rng.standard_normal(outputs_BK.shape, dtype=np.float32)
        log_probs = (-0.5 * deviates * deviates - log_std - np.float32(0.5 * LOG_2PI)).sum(axis=1)
        return outputs_BK + np.exp(log_std) * deviates, log_probs

    def mode(self, outputs_BK: np.ndarray) -> np.ndarray:
        """The means."""
        return outputs_BK.copy()

    def metrics(self) -> dict[str, float]:
        """`std`, the mean of the deviations."""
        return {"std": float(self.log_std.detach().exp().mean())}


def make_distribution(space: gym.Space[Any], initial_log_std: float) -> Distribution:
    """Returns the distribution over the actions of a space.

    Raises:
        TypeError: There is none for such a space.
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
