"""The forks of population-based training: which run a trial continues, and the checkpoint that it begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.run_layout import CHECKPOINTS, checkpoint_name
from rl_training.runtime.checkpoint import Checkpoint, open_checkpoint
from rl_training.sweeps.engines.engine import ForkOrigin, Segment, make_key
from rl_training.sweeps.plan import Step
from rl_training.sweeps.segments import find_trial_dir, make_trial_uid


@dataclass(frozen=True)
class Ancestry:
    """The run that a trial trains now."""

    generation: int = 0
    """The number of forks before it in its trial."""
    origin: ForkOrigin | None = None
    """What the run was forked from; None for the first run of a trial."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run's point."""


def trace_forks(sweep_uid: str, steps: Iterable[Step]) -> dict[int, Ancestry]:
    """Returns the newest run of each trial.

    Args:
        sweep_uid: The identity of the sweep.
        steps: All steps of the sweep so far, those of the round to be run included.
    """
    newest: dict[int, Ancestry] = {}
    for step in steps:
        before = newest.get(step.trial, Ancestry())
        if step.fork is None:
            newest[step.trial] = Ancestry(before.generation, before.origin, step.params)
            continue
        parent, (seed,) = newest[step.fork.trial], step.seeds
        key = make_key(step.fork.trial, seed, parent.generation)
        ancestor = {
            "trial": step.fork.trial,
            "run_uid": make_trial_uid(sweep_uid, key),
            "num_timesteps": step.fork.num_timesteps,
            "params": dict(parent.params),
        }
        lineage = (*(parent.origin.lineage if parent.origin is not None else ()), ancestor)
        origin = ForkOrigin(key, step.fork.num_timesteps, lineage)
        newest[step.trial] = Ancestry(before.generation + 1, origin, step.params)
    return newest


def find_fork_origin(segment: Segment) -> Checkpoint:
    """Returns the checkpoint that the run of a segment is forked from: on this machine, or in MLflow.

    Raises:
        CheckpointError: It is in neither.
        TrackingError: MLflow can't be reached.
    """
    origin = segment.fork_of
    assert origin is not None
    run_uid, name = make_trial_uid(segment.sweep_uid, origin.key), checkpoint_name(origin.num_timesteps)
    path = find_trial_dir(segment.sweep_uid, origin.key) / CHECKPOINTS / name
    if path.is_dir():
        checkpoint = open_checkpoint(path)
        if checkpoint.run_uid == run_uid:
            return checkpoint
    if segment.parent_run_id is not None:
        downloaded = download_trial_checkpoint(run_uid, f"{CHECKPOINTS}/{name}")
        if downloaded is None:
            raise CheckpointError(f"MLflow has no run with the run_uid {run_uid}, which this run is a fork of")
        return downloaded
    raise CheckpointError(
        f"{segment.key} is a fork of {origin.key} at step {origin.num_timesteps:,}, and {path} is not that checkpoint; "
        f"an untracked population has to stay on one machine"
    )


def download_trial_checkpoint(run_uid: str, path: str) -> Checkpoint | None:
    """Returns a checkpoint of a trial's run from MLflow; None if MLflow has no such run.

    Args:
        run_uid: The identity of the run.
        path: The checkpoint among the run's artifacts; `checkpoints` for the newest good one.

    Raises:
        CheckpointError: The run has no such checkpoint.
        TrackingError: MLflow can't be reached.
    """
    from rl_training.tracking.checkpoint_sources import RunSource, download_run_checkpoint
    from rl_training.tracking.mlflow_run import find_run_id
    from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri, translate_mlflow_errors

    uri = resolve_tracking_uri()
    with translate_mlflow_errors(uri, f"run {run_uid}"):
        client = connect(uri)
        run_id = find_run_id(client, run_uid)
        return None if run_id is None else download_run_checkpoint(client, RunSource(run_id, path), "everything")
