"""Gymnasium's native CartPole with resets by mask, and with a state that a resumed run restores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from typing_extensions import TypedDict

from rl_training.errors import CheckpointError
from rl_training.state_checks import require_finite_values, require_same_form, validate


class _State(TypedDict):
    state: Any
    steps: Any


class MaskedCartPole(CartPoleVectorEnv):
    """Gymnasium's native CartPole with resets by mask, and with the methods of `ResumableVectorEnv`.

    Gymnasium's mode is NEXT_STEP; rows that were reset by mask are no longer marked as done, so it resets none.
    """

    metadata = {**CartPoleVectorEnv.metadata, "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Resets all rows, or those where `options["reset_mask"]` (bool [N]) is true."""
        if options is None or "reset_mask" not in options:
            return super().reset(seed=seed, options=options)
        mask = options["reset_mask"]
        self.low, self.high = maybe_parse_reset_bounds(options, -0.05, 0.05)
        assert self.state is not None
        self.state[:, mask] = self.np_random.uniform(self.low, self.high, (4, np.count_nonzero(mask)))
        self.steps[mask] = 0
        self.prev_done[mask] = False
        return self.state.T.astype(np.float32), {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of all rows; the random state is `np_random`'s, and no row is marked as done between steps.

        Returns:
            `state`, float64 [4, N], and `steps`, the steps of the running episodes, int32 [N].
        """
        assert self.state is not None
        return {"state": self.state.copy(), "steps": self.steps.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned.

        Raises:
            CheckpointError: The state belongs to another number of environments, or is none of a CartPole.
        """
        got = validate("native state", dict(state), _State)
        own = np.zeros((4, self.num_envs))
        rows = require_finite_values("native state/state", require_same_form("native state/state", got["state"], own))
        steps = require_same_form("native state/steps", got["steps"], self.steps)
        if (steps < 0).any() or (steps >= self.max_episode_steps).any():
            raise CheckpointError(f"native state/steps: an episode is not between 0 and {self.max_episode_steps} steps")
        self.state = np.array(rows, order="C")  # type: ignore[assignment]
        self.steps = steps.copy()
