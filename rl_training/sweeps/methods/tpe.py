"""Search by tree-structured Parzen estimators (Bergstra et al. 2011), which Optuna computes.

Optuna's study is made afresh for each round, from the complete rounds, so nothing of it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.complete_trials import list_next_trials, make_steps
from rl_training.sweeps.methods.optuna_values import make_optuna_trial, silence_optuna
from rl_training.sweeps.methods.random_search import MOST_DRAWS, refuse_space
from rl_training.sweeps.plan import Outcome, Round, Step, list_outcomes
from rl_training.sweeps.space import Choices, Dimension, Point
from rl_training.sweeps.trial_settings import find_fault

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

RANDOM_TRIALS = 10
"""Trials that must have ended before points are no longer random: Optuna's default."""


class TPEMethod:
    """Chooses points that are likelier among the best complete trials than among the others.

    All settings are considered together (multivariate), those with conditions in groups of settings that are set
    together. The trials that are chosen before in the same round count as bad ones (a constant liar), so the points of
    a round differ.
    """

    def __init__(self, sweep: Sweep) -> None:
        """Keeps the sweep.

        Raises:
            ConfigError: Optuna is not installed.
        """
        try:
            import optuna  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError("method: tpe needs Optuna; install it with: pip install 'rl-training[optuna]'") from None
        self._sweep = sweep

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round.

        Raises:
            ConfigError: The settings refuse every point that was drawn for a trial.
        """
        numbers = list_next_trials(self._sweep, rounds, self._sweep.settings.trials)
        with silence_optuna():
            study = self._make_study(rounds)
            points = [(number, self._choose_point(study, number)) for number in numbers]
        return make_steps(self._sweep, rounds, points)

    def _make_study(self, rounds: Sequence[Round]) -> Study:
        """Returns a study with the trials of the complete rounds, in the order of their numbers."""
        from optuna import create_study

        study = create_study(direction=self._sweep.settings.direction)
        for step, outcome in sorted(list_outcomes(rounds, "search"), key=lambda pair: pair[0].trial):
            study.add_trial(self._make_trial(step.params, outcome))
        return study

    def _make_trial(self, params: Mapping[str, Any], outcome: Outcome) -> FrozenTrial:
        from optuna.trial import TrialState

        scored = outcome.score is not None and math.isfinite(outcome.score)
        complete, pruned = scored and outcome.state == "complete", outcome.state == "pruned"
        return make_optuna_trial(
            self._sweep.space.dimensions,
            params,
            state=TrialState.COMPLETE if complete else TrialState.PRUNED if pruned else TrialState.FAIL,
            value=outcome.score if complete else None,
            intermediate_values=average_evaluations(outcome),
        )

    def _choose_point(self, study: Study, number: int) -> Point:
        """Returns the point of a trial, and leaves it in the study as a running trial, which counts as a bad one.

        So do points that the settings refuse, so that the next draw avoids them.
        """
        from optuna.samplers import TPESampler

        for draw in range(MOST_DRAWS):
            (seed,) = np.random.SeedSequence([self._sweep.settings.seed, number, draw]).generate_state(1)
            study.sampler = TPESampler(n_startup_trials=RANDOM_TRIALS, seed=int(seed), group=True)
            trial = study.ask()
            point = self._sweep.space.choose(partial(_suggest, trial))
            fault = find_fault(self._sweep, point)
            if fault is None:
                return point
        raise refuse_space(fault)


def average_evaluations(outcome: Outcome) -> dict[int, float]:
    """Returns the mean of the runs' metrics at each step at which one was evaluated; NaN and infinity are left out."""
    found: dict[int, list[float]] = {}
    for run in outcome.runs:
        for step, value in run.evaluations.items():
            if math.isfinite(value):
                found.setdefault(step, []).append(value)
    return {step: sum(values) / len(values) for step, values in sorted(found.items())}


def _suggest(trial: Trial, dimension: Dimension) -> Any:
    """Returns the value that Optuna suggests for a dimension."""
    key, values = dimension.key, dimension.values
    if isinstance(values, Choices):
        return values.values[trial.suggest_categorical(key, range(len(values.values)))]
    if values.whole:
        return trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
    return values.settle(trial.suggest_float(key, values.low, values.high, log=values.log))
