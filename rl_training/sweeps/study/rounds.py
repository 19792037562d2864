"""Turns the steps of a round into segments for the engine, and the records of their runs into outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl_training.errors import ConfigError, ReceivedError, one_line
from rl_training.sweeps.engines.engine import Segment, make_key
from rl_training.sweeps.forks import trace_forks
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.plan import Outcome, Round, RunRecord, Step, TrialState
from rl_training.sweeps.segments import find_trial_dir, make_trial_uid
from rl_training.sweeps.study.study import StoredRound
from rl_training.sweeps.trial_settings import make_trial_config


def require_planned(sweep: Sweep, rounds: Sequence[StoredRound]) -> None:
    """Checks that stored steps are ones that the sweep may have planned.

    Others could name modules, which the trials would import.

    Raises:
        ReceivedError: A step is none.
    """
    known: set[int] = set()
    for step in (step for each in rounds for step in each.steps):
        if not sweep.space.holds(step.params):
            raise ReceivedError(
                f"sweep {sweep.uid} in the study database is damaged: trial {step.trial} has settings that the space "
                f"of the sweep does not contain; begin another sweep with --new"
            )
        if step.fork is not None and (step.fork.trial not in known or len(step.seeds) != 1):
            raise ReceivedError(
                f"sweep {sweep.uid} in the study database is damaged: trial {step.trial} is a fork of no run before "
                f"it; begin another sweep with --new"
            )
        known.add(step.trial)


def complete_round(stored: StoredRound) -> Round:
    """Returns a round, all runs of which have ended, with its outcomes."""
    runs = [tuple(stored.records[i, seed] for seed in step.seeds) for i, step in enumerate(stored.steps)]
    return Round(stored.steps, tuple(map(make_outcome, runs)))


def make_outcome(runs: Sequence[RunRecord]) -> Outcome:
    """Returns what came of a step, from the records of its runs; see `Outcome`."""
    states = [run.state for run in runs]
    newest = [run.newest for run in runs if run.newest is not None]
    state: TrialState = "complete"
    if "failed" in states:
        state = "failed"
    elif 2 * states.count("pruned") > len(states):
        state = "pruned"
    elif "paused" in states:
        state = "paused"
    has_score = state != "failed" and len(newest) == len(runs)
    return Outcome(state, math.fsum(newest) / len(newest) if has_score else None, tuple(runs))


class SegmentMaker:
    """Makes the segments of the runs of one round.

    Args:
        sweep: The sweep.
        rounds: The complete rounds before this one.
        steps: The steps of the round.
        parent_run_id: The MLflow run of the sweep; None if the sweep is not tracked or offline.
        offline: Whether the data for MLflow stays in the directories of the runs.
        continued: Whether another process may have begun the round.
    """

    def __init__(
        self,
        sweep: Sweep,
        rounds: Sequence[Round],
        steps: Sequence[Step],
        parent_run_id: str | None,
        *,
        offline: bool,
        continued: bool,
    ) -> None:
        before = [step for each in rounds for step in each.steps]
        self._sweep, self._parent_run_id, self._offline = sweep, parent_run_id, offline
        self._ancestry = trace_forks(sweep.uid, [*before, *steps])
        self._begun = {step.trial for step in (*before, *(steps if continued else ()))}

    def make(self, step: Step, seed: int) -> Segment | RunRecord:
        """Returns the segment of a run; if the settings refuse the point, the record of a run that failed."""
        ancestry, settings = self._ancestry[step.trial], self._sweep.settings
        try:
            config = make_trial_config(self._sweep, step.params, seed)
        except ConfigError as error:
            return self._make_refused(make_key(step.trial, seed, ancestry.generation), seed, error)
        return Segment(
            sweep_uid=self._sweep.uid,
            trial=step.trial,
            seed=seed,
            generation=ancestry.generation,
            settings=config.model_dump(mode="json", exclude={"run_dir"}),
            until=step.until,
            metric=settings.metric,
            phase=step.phase,
            prune_below=step.prune_below if settings.direction == "maximize" else {},
            prune_above=step.prune_below if settings.direction == "minimize" else {},
            fork_of=ancestry.origin,
            forkable=settings.method.name == "population",
            parent_run_id=self._parent_run_id,
            offline=self._offline,
            begun=step.trial in self._begun,
            cpus=settings.resources.cpus,
            gpus=settings.resources.gpus,
            memory_gb=settings.resources.memory_gb,
        )

    def _make_refused(self, key: str, seed: int, error: ConfigError) -> RunRecord:
        return RunRecord(
            seed=seed,
            run_uid=make_trial_uid(self._sweep.uid, key),
            run_id=None,
            run_dir=str(find_trial_dir(self._sweep.uid, key)),
            state="failed",
            num_timesteps=0,
            evaluations={},
            policy_sha256=None,
            error=one_line(error),
        )
