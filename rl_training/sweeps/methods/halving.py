"""Synchronous successive halving: all trials train a little, and the best of them train on.

Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", algorithm 1, with
the factor eta of Li et al. 2018, "Hyperband", in place of 2. Trials have the complete `total_timesteps` from the start,
so their schedules are those of a complete run; they pause at a rung, and the survivors resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rl_training.config.settings import TrainConfig
from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.random_search import draw_point
from rl_training.sweeps.methods.ranking import MAY_CONTINUE, TrialHistory
from rl_training.sweeps.plan import Round, Step
from rl_training.sweeps.sweep_config import MethodConfig


class HalvingMethod:
    """Trains all trials to the first rung, and one in `eta` of them from each rung to the next."""

    def __init__(self, sweep: Sweep) -> None:
        """Computes the rungs.

        Raises:
            ConfigError: Two rungs would have the same evaluation.
        """
        self._sweep = sweep
        self._rungs = compute_rungs(sweep.settings.method, sweep.base)

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round.

        Raises:
            ConfigError: The settings refuse every point that was drawn for a trial.
        """
        settings, history = self._sweep.settings, TrialHistory(self._sweep, rounds)
        trials = list(range(settings.trials))
        for until in self._rungs:
            known = history.find(trials, until)
            if due := [trial for trial in trials if trial not in known]:
                return [self._make_step(trial, until) for trial in due[: settings.parallel]]
            best = [trial for trial in history.rank(known) if known[trial].state in MAY_CONTINUE]
            trials = sorted(best[: count_survivors(len(trials), settings.method.eta)])
        return []

    def _make_step(self, trial: int, until: int) -> Step:
        return Step(trial, draw_point(self._sweep, trial), self._sweep.seeds, until=until)


def compute_rungs(method: MethodConfig, base: TrainConfig) -> tuple[int, ...]:
    """Returns the environment steps of the rungs: the total, the total / eta, the total / eta^2, ... in rising order.

    All but the total are rounded up to a multiple of `evaluation.every`, so that each rung has its own evaluation.

    Raises:
        ConfigError: Two rungs would have the same evaluation.
    """
    total, every = base.total_timesteps, base.evaluation.every
    shares = (method.eta**k for k in range(method.rungs - 1, 0, -1))
    rungs = (*(-(-total // (share * every)) * every for share in shares), total)
    if any(after <= before for before, after in pairwise(rungs)):
        raise ConfigError(
            f"method.rungs: got {method.rungs} with eta {method.eta}, and the rungs "
            f"{', '.join(f'{step:,}' for step in rungs)} are not apart, because the metric is known every {every:,} of "
            f"{total:,} steps; lower evaluation.every or method.rungs"
        )
    return rungs


def count_survivors(trials: int, eta: int) -> int:
    """Returns how many of the trials of a rung continue: one in `eta`, rounded up."""
    return -(-trials // eta)
