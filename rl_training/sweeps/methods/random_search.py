"""Random search: the point of each trial is drawn by a generator of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.complete_trials import list_next_trials, make_steps
from rl_training.sweeps.plan import Round, Step
from rl_training.sweeps.space import Point
from rl_training.sweeps.trial_settings import find_fault

MOST_DRAWS = 1_000
"""Points that are drawn for one trial, until the settings take one."""


class RandomMethod:
    """Draws each point independently."""

    def __init__(self, sweep: Sweep) -> None:
        """Keeps the sweep."""
        self._sweep = sweep

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round.

        Raises:
            ConfigError: The settings refuse every point that was drawn for a trial.
        """
        numbers = list_next_trials(self._sweep, rounds, self._sweep.settings.trials)
        return make_steps(self._sweep, rounds, [(number, draw_point(self._sweep, number)) for number in numbers])


def draw_point(sweep: Sweep, trial: int) -> Point:
    """Returns the point of a trial, which depends on the sweep's seed and the trial's number alone.

    A point whose settings are not valid together is drawn again.

    Raises:
        ConfigError: None of `MOST_DRAWS` points is valid.
    """
    rng = np.random.default_rng(np.random.SeedSequence([sweep.settings.seed, trial]))
    for _ in range(MOST_DRAWS):
        point = sweep.space.draw(rng)
        fault = find_fault(sweep, point)
        if fault is None:
            return point
    raise refuse_space(fault)


def refuse_space(fault: str | None) -> ConfigError:
    """Returns the error of a space in which no valid point was found."""
    return ConfigError(f"space: each of {MOST_DRAWS:,} drawn points is refused; narrow the values; the last: {fault}")
