"""A task that needs a memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from case_envs.plain import Plain


class Recall(Plain):
    """The first observation shows a cue, 0 or 1; the fifth and last action earns 1 if it is the cue.

    Best return 1. Without a memory, an episode's last action can't depend on its cue: 1/2 on average.
    """

    length = 5

    def observe(self) -> Any:
        if self.t == 0:
            self.cue = int(self.np_random.integers(2))
        shown = 2.0 * self.cue - 1.0 if self.t == 0 else 0.0
        return np.array([shown, float(self.t == self.length - 1), 0.0, 0.0], np.float32)

    def reward(self, action: Any) -> float:
        return float(self.t == self.length and int(action) == self.cue)
