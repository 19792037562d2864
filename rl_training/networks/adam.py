"""Adam over one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.state_checks import Count, require_finite_values, require_same_form, validate


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) in one pass over one vector, epsilon outside of the square root.

    By the kernel of `torch.optim.Adam(fused=True)`, without that import, which takes seconds (it brings the compiler
    in). The learning rate is handed to each step, since schedules are functions of the training progress and not the
    optimiser's state.

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
        self._steps = torch.zeros((), dtype=torch.float32, device=size.device)

    def step(self, vector: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Moves `vector` in place, against `gradient`."""
        self.steps += 1
        self._steps.fill_(self.steps)
        # A unit without a gradient (a dead rectifier) has a mean that decays until it is denormal, which a CPU computes
        # several times slower; it is zero instead.
        torch.set_flush_denormal(True)
        torch._fused_adam_(
            [vector], [gradient], [self.mean], [self.square], [], [self._steps],
            lr=learning_rate, beta1=self.beta1, beta2=self.beta2, eps=self.epsilon,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
        torch.set_flush_denormal(False)

    def state_dict(self) -> dict[str, Any]:
        """Returns the step count and copies of both running means."""
        return {"steps": self.steps, "mean": self.mean.cpu().clone(), "square": self.square.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            CheckpointError: It is of another vector, or holds a NaN or infinity.
        """
        self.steps = validate("optimizer/steps", state["steps"], Count)
        for name, own in (("mean", self.mean), ("square", self.square)):
            own.copy_(
                require_finite_values(
                    f"optimizer/{name}", require_same_form(f"optimizer/{name}", state[name], own.cpu())
                )
            )
