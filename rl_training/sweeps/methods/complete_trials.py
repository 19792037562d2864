"""What grid, random search and TPE share: each trial is one step, which trains from beginning to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.pruning import compute_bounds
from rl_training.sweeps.plan import Round, Step, list_outcomes


def list_next_trials(sweep: Sweep, rounds: Sequence[Round], total: int) -> range:
    """Returns the numbers of the trials of the next round, of `total` trials in all."""
    done = len(list_outcomes(rounds, "search"))
    return range(done, min(done + sweep.settings.parallel, total))


def make_steps(sweep: Sweep, rounds: Sequence[Round], points: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Step]:
    """Returns the steps of a round whose trials train to the end.

    Args:
        sweep: The sweep.
        rounds: The complete rounds.
        points: The number and the point of each trial.
    """
    total = sweep.base.total_timesteps
    bounds = compute_bounds(sweep.settings, rounds, total)
    return [Step(number, point, sweep.seeds, total, prune_below=bounds) for number, point in points]
