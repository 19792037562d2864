"""A grid: every combination of the choices, in the order of the file."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.complete_trials import list_next_trials, make_steps
from rl_training.sweeps.plan import Round, Step
from rl_training.sweeps.trial_settings import find_fault


class GridMethod:
    """Tries all points of a space without ranges; those that the settings refuse are left out."""

    def __init__(self, sweep: Sweep) -> None:
        """Lists the points.

        Raises:
            ConfigError: The settings refuse every point.
        """
        self._sweep = sweep
        points = sweep.space.list_grid()
        faults = [find_fault(sweep, point) for point in points]
        self._points = [point for point, fault in zip(points, faults, strict=True) if fault is None]
        if not self._points:
            raise ConfigError(
                f"space: each of the {len(points):,} points of the grid is refused; the last: {faults[-1]}"
            )

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round."""
        numbers = list_next_trials(self._sweep, rounds, min(len(self._points), self._sweep.settings.trials))
        return make_steps(self._sweep, rounds, [(number, self._points[number]) for number in numbers])
