"""The plan of a sweep: what each trial does in each round, and what came of it.

A method is a pure function from the complete rounds to the next round. The study database keeps the rounds, so a sweep
that was killed plans the same rounds again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Phase = Literal["search", "confirmation"]
TrialState = Literal["complete", "paused", "pruned", "failed"]
"""`complete`: trained to the end. `paused`: stopped at a rung; a later step may resume it. `pruned`: stopped for good
by its evaluations. `failed`: its training failed, for example with a NaN."""


@dataclass(frozen=True)
class Fork:
    """The checkpoint that a trial continues from instead of its own: population-based training."""

    trial: int
    """The trial that is forked."""
    num_timesteps: int
    """The step of its checkpoint."""


@dataclass(frozen=True)
class Step:
    """What one trial does in one round: it trains, begins or resumes, until `until`."""

    trial: int
    """Number of the trial; a trial keeps its number in all rounds."""
    params: Mapping[str, Any]
    """The settings of the point by dotted key; only those that differ from the base config or are searched."""
    seeds: tuple[int, ...]
    """The training seeds; each is a run."""
    until: int
    """Environment steps at which the runs are stopped; the base config's `total_timesteps` lets them end."""
    phase: Phase = "search"
    fork: Fork | None = None
    prune_below: Mapping[int, float] = field(default_factory=dict)
    """A run stops at an evaluation at one of these steps if its metric is worse than the value."""


@dataclass(frozen=True)
class RunRecord:
    """A run of a trial, as far as it has come."""

    seed: int
    run_uid: str
    run_id: str | None
    """Id of the MLflow run; None if it is not tracked."""
    run_dir: str
    state: TrialState
    num_timesteps: int
    evaluations: Mapping[int, float]
    """The metric of each periodic evaluation, by step."""
    policy_sha256: str | None
    """Of the newest checkpoint; None if the run failed before one was written."""
    held_out: float | None = None
    """The metric in the held-out evaluation of a complete run: its mean return for `eval/return_mean`."""
    summary: Mapping[str, Any] | None = None
    """The summary of a complete run, as `rl-training train --json` prints it."""
    error: str | None = None
    """Why the run failed, as one line."""
    lineage: tuple[Mapping[str, Any], ...] = ()
    """The runs that this one was forked from, oldest first, each with `trial`, `run_uid`, `num_timesteps`, `params`."""

    @property
    def newest(self) -> float | None:
        """The metric of the newest evaluation; None before the first one."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    state: TrialState
    """`failed` if any run failed; `pruned` if more than half of the runs were."""
    score: float | None
    """The mean of the runs' newest values of the metric; None for a failed trial."""
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Round:
    """A complete round: the steps, in the order of their trials' numbers, and their outcomes."""

    steps: tuple[Step, ...]
    outcomes: tuple[Outcome, ...]


def list_outcomes(rounds: Sequence[Round], phase: Phase) -> list[tuple[Step, Outcome]]:
    """Returns the steps of one phase in their order, each with its outcome."""
    pairs = (pair for each in rounds for pair in zip(each.steps, each.outcomes, strict=True))
    return [(step, outcome) for step, outcome in pairs if step.phase == phase]


class Method(Protocol):
    """Chooses the next round of a sweep."""

    def plan(self, rounds: Sequence[Round]) -> list[Step]:
        """Returns the steps of the next round, at most `SweepConfig.parallel`; none if the search is complete.

        The result depends on the sweep's settings (which the method was made from) and on the search in `rounds` alone;
        rounds of the confirmation count for nothing.
        """
