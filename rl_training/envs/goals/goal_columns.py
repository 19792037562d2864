"""Where the goals of a goal-conditioned environment stand in its encoded observations.

Shapes: B batch, O features of the vector part, G numbers in a goal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.spaces import ObservationEncoder
from rl_training.errors import EnvironmentRefused, one_line

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""The keys of the goals in an observation, as in Gymnasium-Robotics: the one that a state is, and the one to reach."""


@dataclass(frozen=True)
class GoalColumns:
    """The columns of both goals in the vector part of observations."""

    achieved: slice
    desired: slice
    space: spaces.Box | spaces.MultiBinary
    """The space of the desired goal, whose shape the achieved goal has too."""

    def to_goals(self, columns_BG: NDArray[np.float32]) -> NDArray[Any]:
        """Returns a batch of encoded goals in the environment's form, [B, *shape of a goal], in a new array."""
        goals = columns_BG.reshape(-1, *self.space.shape)
        dtype = np.dtype(self.space.dtype)
        return (goals if dtype.kind == "f" else np.rint(goals)).astype(dtype)

    def with_achieved_as_desired(self, vector_BO: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns a copy of the vector part of observations in which each desired goal is the achieved one."""
        copied = vector_BO.copy()
        copied[:, self.desired] = vector_BO[:, self.achieved]
        return copied


def find_goal_columns(encoder: ObservationEncoder) -> GoalColumns:
    """Returns the columns of the goals in observations.

    Raises:
        EnvironmentRefused: The observation is no `Dict` with two goals, or these are no numbers of the same shape.
    """
    space = encoder.space
    if not isinstance(space, spaces.Dict) or not {ACHIEVED, DESIRED} <= space.spaces.keys():
        raise EnvironmentRefused(
            f"hindsight needs a Dict observation with {ACHIEVED} and {DESIRED}, got {one_line(space)}; take an "
            f"environment with goals, or leave hindsight out"
        )
    parts = achieved, desired = space[ACHIEVED], space[DESIRED]
    columns = [encoder.columns((name,)) for name in (ACHIEVED, DESIRED)]
    known = all(isinstance(part, spaces.Box | spaces.MultiBinary) for part in parts)
    if not known or None in columns or achieved.shape != desired.shape:
        raise EnvironmentRefused(
            f"hindsight needs goals that are a Box or MultiBinary of numbers, both of the same shape; got {ACHIEVED} "
            f"{one_line(achieved)} and {DESIRED} {one_line(desired)}"
        )
    return GoalColumns(columns[0], columns[1], desired)  # type: ignore[arg-type]
