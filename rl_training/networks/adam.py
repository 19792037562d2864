"""The Adam optimiser for one flat vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.state_checks import Count, require_finite_values, require_same_form, validate


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1), one pass over one vector, with epsilon outside the square root.

    This class calls the kernel of `torch.optim.Adam(fused=True)` directly, because importing `torch.optim` takes
    seconds (it imports the compiler). Each step takes the learning rate as an argument, because schedules are functions
    of the training progress and not part of the optimiser's state.

    Attributes:
        steps: Number of steps taken, for the bias correction.
        mean: Running mean of the gradient, [P].
        square: Running mean of the squared gradient, [P].
    """

    def __init__(self, size: Tensor, epsilon: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """Makes an optimiser, at step 0, for a vector of the size, dtype and device of `size`."""
        self.epsilon, self.beta1, self.beta2 = epsilon, beta1, beta2
        self.steps = 0
        self.mean = torch.zeros_like(size)
        self.square = torch.zeros_like(size)
        self._steps = torch.zeros((), dtype=torch.float32, device=size.device)

    def step(self, vector: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Updates `vector` in place, against `gradient`."""
        self.steps += 1
        self._steps.fill_(self.steps)
        # The mean of a parameter without a gradient (behind a dead rectifier) decays until it is denormal, and CPUs
        # compute with denormal numbers several times slower. Flushing turns such a mean into zero.
        torch.set_flush_denormal(True)
        torch._fused_adam_(
            [vector], [gradient], [self.mean], [self.square], [], [self._steps],
            lr=learning_rate, beta1=self.beta1, beta2=self.beta2, eps=self.epsilon,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
        torch.set_flush_denormal(False)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps and copies of both running means."""
        return {"steps": self.steps, "mean": self.mean.cpu().clone(), "square": self.square.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned.

        Raises:
            CheckpointError: The state is from a vector of another size, or has a NaN or infinity.
        """
        self.steps = validate("optimizer/steps", state["steps"], Count)
        for name, own in (("mean", self.mean), ("square", self.square)):
            own.copy_(
                require_finite_values(
                    f"optimizer/{name}", require_same_form(f"optimizer/{name}", state[name], own.cpu())
                )
            )
