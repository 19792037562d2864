"""Converts the policy's actions to the environment's form.

Shapes: `N` environments, `A` numbers in an action.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.space_leaves import UnsupportedSpace

ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]


class ActionCodec:
    """Converts a batch of the policy's actions to the units, shape and dtype of the environment.

    The policy counts discrete choices from 0 and sees every other action as a flat row. `kind`, `shape` and `dtype`
    describe one action of the policy: `discrete` int64 [], `multi_discrete` int64 [A], `multi_binary` int8 [A],
    `box` float32 [A].

    Args:
        space: The action space of one environment.
        scaled: Whether the policy's `Box` actions lie in [-1, 1], where -1 is the lower and 1 the upper bound of each
            dimension. Otherwise they are in the environment's units.

    Raises:
        UnsupportedSpace: `space` can't be converted, or `scaled` is set and `space` is not a `Box` with bounds.
    """

    def __init__(self, space: gym.Space[Any], *, scaled: bool = False) -> None:
        self.space, self.scaled = space, scaled
        self.kind: ActionKind
        self.dtype: np.dtype[Any]
        self.nvec: tuple[int, ...] = ()
        """Number of choices: (n,) for `Discrete`, one entry per dimension for `MultiDiscrete`, else empty."""
        if isinstance(space, spaces.Discrete):
            self.kind, self.dtype, self.nvec = "discrete", np.dtype(np.int64), (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete):
            self.kind, self.dtype = "multi_discrete", np.dtype(np.int64)
            self.nvec = tuple(int(n) for n in space.nvec.ravel())
        elif isinstance(space, spaces.MultiBinary):
            self.kind, self.dtype = "multi_binary", np.dtype(np.int8)
        elif isinstance(space, spaces.Box):
            self.kind, self.dtype = "box", np.dtype(np.float32)
        else:
            raise UnsupportedSpace(
                f"action space {space} is not supported; Discrete, MultiDiscrete, MultiBinary and Box are"
            )
        self._env_shape: tuple[int, ...] = space.shape or ()
        self._env_dtype = np.dtype(space.dtype)
        start = getattr(space, "start", 0)
        self._start = start if np.any(start) else None
        self.shape: tuple[int, ...] = () if self.kind == "discrete" else (prod(self._env_shape),)
        if self.size == 0:
            raise UnsupportedSpace(f"action space {space} holds no number; at least one is needed")
        if scaled and not (isinstance(space, spaces.Box) and space.is_bounded()):
            raise UnsupportedSpace(f"action space {space} has no bounds to scale actions to; a bounded Box has")

    @property
    def size(self) -> int:
        """Count of numbers in one action (1 for `Discrete`)."""
        return prod(self.shape)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Returns the actions for the environments, in a new array.

        Args:
            actions: The policy's actions, [N, *shape]. `Box` actions are scaled if the codec is `scaled`, and clipped
                to the bounds of the space.
        """
        space = self.space
        actions = actions.reshape((len(actions), *self._env_shape))
        if isinstance(space, spaces.Box):
            return self._within_bounds(actions, space)
        if self._start is not None:
            actions = actions + self._start
        return actions.astype(self._env_dtype)

    def _within_bounds(self, actions: NDArray[Any], space: spaces.Box) -> NDArray[Any]:
        if self.scaled:
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            share = 0.5 * (actions.astype(np.float64) + 1.0)
            actions = (1.0 - share) * low + share * high  # as low + share * (high - low) could overflow
        if self._env_dtype.kind == "f":
            # Cast before clipping: a float32 bound may lie above the float64 bound that it was rounded from.
            actions = actions.astype(self._env_dtype).clip(space.low, space.high)
        else:
            actions = np.rint(actions.astype(np.float64).clip(space.low, space.high))
        return actions.astype(self._env_dtype, copy=False)
