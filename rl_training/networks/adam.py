"""Adam over one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) as a few in-place operations on one vector.

    The same numbers as `torch.optim.Adam`, with epsilon outside of the square root and without its import, which takes
    seconds (it brings the compiler in). The learning rate is handed to each step, since schedules are functions of the
    training progress and not the optimiser's state.

    Attributes:
        steps: Steps taken, for the bias correction.
        mean: Running mean of the gradient, [P].
        square: Running mean of its square, [P].
    """

    def __init__(self, size: Tensor, epsilon: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """Makes the state of an optimiser of a vector like `size`, at step 0."""
        self.epsilon, self.beta1, self.beta2 = epsilon, beta1, beta2
        self.steps = 0
        self.mean = torch.zeros_like(size)
        self.square = torch.zeros_like(size)
        self._scratch = torch.empty_like(size)

    def step(self, vector: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Moves `vector` in place, against `gradient`."""
        self.steps += 1
        correction1 = 1.0 - self.beta1**self.steps
        correction2 = 1.0 - self.beta2**self.steps
        self.mean.lerp_(gradient, 1.0 - self.beta1)
        self.square.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)
        deviation = torch.sqrt(self.square, out=self._scratch).div_(math.sqrt(correction2)).add_(self.epsilon)
        vector.addcdiv_(self.mean, deviation, value=-learning_rate / correction1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the step count and copies of both running means."""
        return {"steps": self.steps, "mean": self.mean.cpu().clone(), "square": self.square.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.steps = int(state["steps"])
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
