"""Plans the confirmation of a sweep: the best points are trained again on seeds that the search has not used.

The best of many noisy scores is higher than what its settings reach on average, so a search's own score says little.
The base config is always among the confirmed, so that the result can say whether the winner is better than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.sweeps.plan import Round, Step
from rl_training.sweeps.trials import Trial, collect_trials, rank_trials

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.sweeps.loading import Sweep

FIRST_SEED = 1_000_000
"""The seeds of the confirmation begin this far above the base config's; a search uses 1,000 at most."""


def plan_confirmation(sweep: Sweep, rounds: Sequence[Round]) -> list[Step]:
    """Returns the next round of the confirmation; nothing if it is complete, or if the search has no score.

    The first trial is the base config; then come the best points of the search, the best first, each trained from
    scratch to its end. A point with the settings of the base config is not trained twice. Trials are numbered after
    those of the search. For a population, whose members changed their settings while they trained, the points are
    the final settings of the best members from the first step on, not their schedules.

    Args:
        sweep: The sweep, whose search is complete.
        rounds: The complete rounds, of both phases; the result depends on these alone.
    """
    search, wanted = collect_trials(rounds, "search"), sweep.settings.confirmation
    points = _choose_points(sweep, search)
    if not points:
        return []
    first = search[-1].number + 1
    seeds = tuple(range(sweep.base.seed + FIRST_SEED, sweep.base.seed + FIRST_SEED + wanted.seeds))
    steps = [
        Step(first + i, params, seeds, sweep.base.total_timesteps, phase="confirmation")
        for i, params in enumerate([{}, *points])
    ]
    done = {trial.number for trial in collect_trials(rounds, "confirmation")}
    return [step for step in steps if step.trial not in done][: sweep.settings.parallel]


def _choose_points(sweep: Sweep, search: Sequence[Trial]) -> list[Mapping[str, Any]]:
    """Returns the settings of the best points, each once, without those that are the base config's."""
    ranked = rank_trials(search, sweep.settings.direction)
    best = list({trial.key: trial.params for trial in ranked}.values())[: sweep.settings.confirmation.points]
    return [params for params in best if not is_base(sweep.base, params)]


def is_base(base: TrainConfig, params: Mapping[str, Any]) -> bool:
    """Returns whether a point's settings are those of the base config."""
    return base.replace(**params) == base
