"""What runs the trials of a sweep: an engine takes segments of runs to CPUs, and nothing else.

A segment is a part of one run, which a process of its own trains: `rl_training.sweeps.trial_process`. It crosses
machines as JSON, so it names no path of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_training.runs.stopping import StopFlag
from rl_training.sweeps.plan import Phase, RunRecord


@dataclass(frozen=True)
class ForkOrigin:
    """The checkpoint that a run begins with, of another trial's run: population-based training."""

    key: str
    """The `Segment.key` of the other run."""
    num_timesteps: int
    """The step of its checkpoint."""
    lineage: tuple[Mapping[str, Any], ...]
    """The runs that the run descends from, oldest first; see `RunRecord.lineage`."""


@dataclass(frozen=True)
class Segment:
    """A part of one run of a trial."""

    sweep_uid: str
    trial: int
    seed: int
    generation: int
    """The number of forks before this run in its trial, which tells the runs of one trial and seed apart."""
    settings: Mapping[str, Any]
    """The complete settings of the run, as JSON, without `run_dir`."""
    until: int
    """Environment steps at which the run is stopped."""
    metric: str
    phase: Phase = "search"
    """What the run is for: the comparison of settings needs those of the confirmation alone."""
    prune_below: Mapping[int, float] = field(default_factory=dict)
    prune_above: Mapping[int, float] = field(default_factory=dict)
    """As `prune_below`, for a metric that is minimized."""
    fork_of: ForkOrigin | None = None
    """What the run is forked from if it has yet to begin; see `forks.trace_forks`."""
    forkable: bool = False
    """Whether other trials may fork the run where it pauses, so that the checkpoints of its newest pauses are kept."""
    parent_run_id: str | None = None
    """The MLflow run of the sweep; None if the sweep is not tracked or offline."""
    offline: bool = False
    """Whether the data for MLflow stays in the run's directory, for `rl-training sync`."""
    begun: bool = False
    """Whether the run may have begun before, so that it is looked for in MLflow if its directory is not here."""
    cpus: int = 1
    gpus: float = 0.0
    memory_gb: float | None = None

    @property
    def key(self) -> str:
        """The identity of the run within its sweep, which also names its directory: `t0007-s3` or `t0007-s3-g1`."""
        return make_key(self.trial, self.seed, self.generation)


def make_key(trial: int, seed: int, generation: int = 0) -> str:
    """Returns the `Segment.key` of a run."""
    return f"t{trial:04d}-s{seed}" + (f"-g{generation}" if generation else "")


@dataclass(frozen=True)
class Lost:
    """The process or the node of a segment died, so that the segment must be tried again."""

    reason: str


class Engine(Protocol):
    """Runs segments."""

    def run(self, segments: Sequence[Segment], stop: StopFlag) -> Iterator[tuple[Segment, RunRecord | Lost]]:
        """Runs the segments, as many at once as there is room for; yields each as it ends, in any order.

        If `stop` is set, the running segments save and end; those that have not ended by themselves are not yielded.
        """

    def close(self) -> None:
        """Ends what the engine has started."""
