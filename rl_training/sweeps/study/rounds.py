"""Turns the steps of a round into segments for the engine, and the records of their runs into outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_training.errors import ConfigError, one_line
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.plan import Outcome, Round, RunRecord, Step, TrialState
from rl_training.sweeps.segments import find_trial_dir, make_trial_uid
from rl_training.sweeps.study.study import StoredRound
from rl_training.sweeps.trial_settings import make_trial_config


def complete_round(stored: StoredRound) -> Round:
    """Returns a round, all runs of which have ended, with its outcomes."""
    runs = [tuple(stored.records[i, seed] for seed in step.seeds) for i, step in enumerate(stored.steps)]
    return Round(stored.steps, tuple(map(make_outcome, runs)))


def make_outcome(runs: Sequence[RunRecord]) -> Outcome:
    """Returns what came of a step, from the records of its runs; see `Outcome`."""
    states = [run.state for run in runs]
    newest = [run.evaluations[max(run.evaluations)] for run in runs if run.evaluations]
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
        parent_run_id: The MLflow run of the sweep; None if the sweep is not tracked or offline.
        offline: Whether the data for MLflow stays in the directories of the runs.
        continued: Whether another process may have begun the round.
    """

    def __init__(
        self, sweep: Sweep, rounds: Sequence[Round], parent_run_id: str | None, *, offline: bool, continued: bool
    ) -> None:
        self._sweep, self._rounds, self._continued = sweep, rounds, continued
        self._parent_run_id, self._offline = parent_run_id, offline

    def make(self, step: Step, seed: int) -> Segment | RunRecord:
        """Returns the segment of a run; if the settings refuse the point, the record of a run that failed."""
        generation = self._count_forks(step.trial) + (step.fork is not None)
        before = [each for each in self._list_steps(step.trial) if each[0].phase == step.phase]
        resources, worse = self._sweep.settings.resources, self._sweep.settings.direction
        try:
            config = make_trial_config(self._sweep, step.params, seed)
        except ConfigError as error:
            return self._make_refused(step, seed, generation, error)
        return Segment(
            sweep_uid=self._sweep.uid,
            trial=step.trial,
            seed=seed,
            generation=generation,
            settings=config.model_dump(mode="json", exclude={"run_dir"}),
            until=step.until,
            metric=self._sweep.settings.metric,
            phase=step.phase,
            prune_below=step.prune_below if worse == "maximize" else {},
            prune_above=step.prune_below if worse == "minimize" else {},
            fork_of=self._describe_fork(step, seed),
            parent_run_id=self._parent_run_id,
            offline=self._offline,
            begun=self._continued or (bool(before) and step.fork is None),
            cpus=resources.cpus,
            gpus=resources.gpus,
            memory_gb=resources.memory_gb,
        )

    def _make_refused(self, step: Step, seed: int, generation: int, error: ConfigError) -> RunRecord:
        key = make_key(step.trial, seed, generation)
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

    def _describe_fork(self, step: Step, seed: int) -> Mapping[str, Any] | None:
        """Returns what the process of the run must know of the run that it forks: the one with the same seed."""
        if step.fork is None:
            return None
        parent, record = next(
            (each, run)
            for each, outcome in reversed(list(self._list_steps(step.fork.trial)))
            for run in outcome.runs
            if run.seed == seed
        )
        origin = {"trial": parent.trial, "run_uid": record.run_uid, "num_timesteps": step.fork.num_timesteps}
        return {
            "key": make_key(parent.trial, seed, self._count_forks(parent.trial)),
            "run_uid": record.run_uid,
            "run_id": record.run_id,
            "num_timesteps": step.fork.num_timesteps,
            "lineage": [*map(dict, record.lineage), {**origin, "params": dict(parent.params)}],
        }

    def _count_forks(self, trial: int) -> int:
        return sum(step.fork is not None for step, _ in self._list_steps(trial))

    def _list_steps(self, trial: int) -> Iterator[tuple[Step, Outcome]]:
        for one in self._rounds:
            yield from (pair for pair in zip(one.steps, one.outcomes, strict=True) if pair[0].trial == trial)


def make_key(trial: int, seed: int, generation: int) -> str:
    """Returns the key of a run; see `Segment.key`."""
    return Segment("", trial, seed, generation, {}, 0, "").key
