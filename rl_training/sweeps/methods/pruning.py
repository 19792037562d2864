"""Which runs are stopped early: those that do worse than a percentile of the runs in the complete rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rl_training.sweeps.plan import Round, list_outcomes
from rl_training.sweeps.sweep_config import SweepConfig


def compute_bounds(settings: SweepConfig, rounds: Sequence[Round], until: int) -> dict[int, float]:
    """Returns the value at each step of an evaluation that a run must reach in order to continue.

    The value is the percentile of all runs that were evaluated at this step in the complete rounds, with linear
    interpolation. A run with exactly this value continues.

    Args:
        settings: The sweep's settings. With `direction: minimize` the percentile is counted from the highest value, and
            a run must not be above it.
        rounds: The complete rounds.
        until: The step at which runs end, where none is stopped.
    """
    pruning = settings.pruning
    outcomes = [outcome for _, outcome in list_outcomes(rounds, "search")]
    complete = sum(outcome.state == "complete" for outcome in outcomes)
    if pruning is None or complete < pruning.after_trials:
        return {}
    found: dict[int, list[float]] = {}
    for run in (run for outcome in outcomes for run in outcome.runs):
        for step, value in run.evaluations.items():
            if pruning.after_steps <= step < until and math.isfinite(value):
                found.setdefault(step, []).append(value)
    rank = pruning.percentile if settings.direction == "maximize" else 100.0 - pruning.percentile
    return {step: float(np.percentile(values, rank)) for step, values in sorted(found.items())}
