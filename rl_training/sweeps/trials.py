"""The trials of a sweep as its complete rounds leave them, and their order from the best."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.sweeps.plan import Outcome, Phase, Round, RunRecord, Step, TrialState, list_outcomes
from rl_training.sweeps.sweep_config import Direction

HELD_OUT = "heldout/"
"""Prefix of the metrics of a held-out evaluation."""


@dataclass(frozen=True)
class Trial:
    """A trial after its newest complete round."""

    number: int
    phase: Phase
    params: Mapping[str, Any]
    """The settings of its newest step; those of a member of a population change at forks."""
    seeds: tuple[int, ...]
    state: TrialState
    score: float | None
    """None for a failed trial."""
    runs: tuple[RunRecord, ...]

    @property
    def num_timesteps(self) -> int:
        """The environment steps that all of its runs have trained for."""
        return min((run.num_timesteps for run in self.runs), default=0)

    @property
    def key(self) -> str:
        """A text that is equal for trials with equal settings."""
        return json.dumps(self.params, sort_keys=True, default=str)


def collect_trials(rounds: Sequence[Round], phase: Phase) -> list[Trial]:
    """Returns the trials of one phase in the order of their numbers."""
    newest = {step.trial: _make_trial(step, outcome) for step, outcome in list_outcomes(rounds, phase)}
    return [newest[number] for number in sorted(newest)]


def _make_trial(step: Step, outcome: Outcome) -> Trial:
    return Trial(step.trial, step.phase, step.params, step.seeds, outcome.state, outcome.score, outcome.runs)


def rank_trials(trials: Sequence[Trial], direction: Direction) -> list[Trial]:
    """Returns the trials that have a score, the best first.

    Complete trials come before those that were paused or pruned, of which those that have trained longer come first:
    scores compare at the same number of steps only. Equal scores are in the order of the trials' numbers.
    """
    sign = -1.0 if direction == "maximize" else 1.0

    def key(trial: Trial) -> tuple[bool, int, float, int]:
        complete = trial.state == "complete"
        assert trial.score is not None
        return not complete, 0 if complete else -trial.num_timesteps, sign * trial.score, trial.number

    return sorted((trial for trial in trials if trial.score is not None), key=key)


def track_best(trials: Sequence[Trial], direction: Direction) -> list[tuple[int, float | None]]:
    """Returns the best score of the complete trials up to each trial's number; None while none is complete."""
    better = max if direction == "maximize" else min
    best: float | None = None
    found = []
    for trial in trials:
        if trial.state == "complete" and trial.score is not None:
            best = trial.score if best is None else better(best, trial.score)
        found.append((trial.number, best))
    return found
