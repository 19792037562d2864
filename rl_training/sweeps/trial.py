"""Trains one segment of a trial's run in this process: finds the run or begins it, trains, and reports on it."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.api.summary import RunSummary
from rl_training.api.training import check_environment, train_and_evaluate
from rl_training.config.resume_rules import keep_vectorization
from rl_training.config.settings import TrainConfig
from rl_training.errors import (
    AlreadyTraining,
    CheckpointError,
    CheckpointNotWritten,
    NoProgress,
    RunFailed,
    RunTakenOver,
    TrackingError,
    UserError,
    error_line,
    one_line,
)
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping, recorded_settings
from rl_training.run_layout import CHECKPOINTS, STEP
from rl_training.runs.locks import is_locked, require_free
from rl_training.runs.run_identity import use_run_uid
from rl_training.runs.single_training import reserve_training
from rl_training.runtime.checkpoint import Checkpoint, keep_pause, newest_good
from rl_training.runtime.checkpoint.downloads import import_checkpoint
from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return
from rl_training.runtime.loop_parts.run_origin import ForkOf
from rl_training.runtime.run_utils import TrainingRun, create_training_run, discard_training_run
from rl_training.runtime.trainer import Trainer
from rl_training.sweeps.engines.engine import Segment
from rl_training.sweeps.forks import download_trial_checkpoint, find_fork_origin
from rl_training.sweeps.plan import RunRecord, TrialState
from rl_training.sweeps.segments import find_trial_dir, make_trial_uid
from rl_training.sweeps.trial_callback import TrialCallback
from rl_training.system.download_directories import discard_downloads
from rl_training.system.durable_files import move_into_place
from rl_training.tracking.mlflow_names import PARENT, PHASE, SWEEP_UID, TRIAL

logger = logging.getLogger(__name__)

FREE_SECONDS = 60.0
"""How long a new process waits for the one before it, which ends when it notices that its sweep is gone."""

NOT_THE_SETTINGS = (
    *(AlreadyTraining, CheckpointError, TrackingError),  # errors of the user that are none of the trial's settings
    *(CheckpointNotWritten, NoProgress, RunTakenOver),  # failures of the machine
)
"""Errors after which the same settings may well train, so the segment is lost rather than the trial failed."""

STATES: Mapping[str, TrialState] = {"paused": "paused", "pruned": "pruned"}
"""The state of a trial's run by the reason why its training ended; for any other reason it is complete."""


@reserve_training()
@discard_downloads()
def run_segment(segment: Segment) -> RunRecord | None:
    """Trains a segment in this process, as `rl_training.train` or `resume` would.

    Returns:
        The record of the run, also if its training failed; None if a signal has stopped it.

    Raises:
        UserError: The run can't be trained here or now, whatever its settings.
        RunFailed: This machine can't train the run to the end of the segment.
    """
    observer = TrialCallback(segment)
    try:
        trainer = _make_trainer(segment, observer)
        if segment.until < trainer.config.total_timesteps:
            trainer.stop.pause_at = segment.until
        if observer.is_pruned():  # its process died after that evaluation
            trainer.stop.request("pruned")
        summary = train_and_evaluate(
            trainer,
            track=segment.parent_run_id is not None or segment.offline,
            offline=segment.offline,
            progress=False,
            tags=_make_tags(segment),
        )
    except NOT_THE_SETTINGS:
        raise
    except (UserError, RunFailed) as error:
        return _describe_failure(segment, observer, error)
    if summary.stop_reason == "signal":
        return None
    return _describe(segment, observer, summary)


def _make_trainer(segment: Segment, observer: TrialCallback) -> Trainer:
    run_dir = find_trial_dir(segment.sweep_uid, segment.key)
    config = config_from_mapping(segment.settings, source=segment.key).model_copy(update={"run_dir": run_dir})
    _wait_until_free(run_dir)
    checkpoint = _find_checkpoint(segment, config)
    validation = check_environment(config).to_record()
    manager = DefaultExperimentManager()
    if checkpoint is None:
        fork = ForkOf(find_fork_origin(segment), segment.fork_of.lineage) if segment.fork_of is not None else None
        with use_run_uid(make_trial_uid(segment.sweep_uid, segment.key)):
            return manager.setup(config, [observer], checkpoint=fork, validation=validation)
    config = config.model_copy(update={"run_dir": recorded_settings(checkpoint).run_dir})
    trainer = manager.setup(config, [observer], checkpoint=checkpoint, validation=validation)
    if has_reached_return(checkpoint):
        trainer.stop.request("return_reached")
    return trainer


def _wait_until_free(run_dir: Path) -> None:
    """Waits for an earlier process of this run to end.

    Raises:
        AlreadyTraining: It does not.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while run_dir.exists() and is_locked(run_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
    if run_dir.exists():
        require_free(run_dir)


def _find_checkpoint(segment: Segment, config: TrainConfig) -> Checkpoint | None:
    """Returns the checkpoint from which the run continues, in its directory; None if the run is to begin."""
    assert config.run_dir is not None
    root = config.run_dir / CHECKPOINTS
    checkpoint, skipped = newest_good(root)
    for line in skipped:
        logger.warning("skipped: %s", line)
    if checkpoint is not None:
        return checkpoint
    _free_directory(config.run_dir)
    if not segment.begun or segment.parent_run_id is None:
        return None
    run_uid = make_trial_uid(segment.sweep_uid, segment.key)
    try:
        downloaded = download_trial_checkpoint(run_uid, CHECKPOINTS)
    except CheckpointError as error:
        logger.warning("%s; the run starts from scratch", error)
        return None
    if downloaded is None:
        return None
    run = create_training_run(keep_vectorization(config, recorded_settings(downloaded)), run_uid=run_uid)
    return import_checkpoint(downloaded, run.checkpoints)


def _free_directory(run_dir: Path) -> None:
    """Frees the directory of a run without a good checkpoint; one with damaged checkpoints is kept beside it."""
    if any((run_dir / CHECKPOINTS).glob(f"{STEP}*")):
        aside = next(path for i in range(1, 10**6) if not (path := Path(f"{run_dir}.damaged-{i}")).exists())
        logger.warning("no checkpoint in %s is good; it is moved to %s", run_dir, aside)
        move_into_place(run_dir, aside)
        return
    shutil.rmtree(run_dir / CHECKPOINTS, ignore_errors=True)
    discard_training_run(TrainingRun(run_dir, ""))


def _make_tags(segment: Segment) -> dict[str, str]:
    parent = {} if segment.parent_run_id is None else {PARENT: segment.parent_run_id}
    return {SWEEP_UID: segment.sweep_uid, TRIAL: segment.key, PHASE: segment.phase, **parent}


def _describe(segment: Segment, observer: TrialCallback, summary: RunSummary) -> RunRecord:
    state = STATES.get(summary.stop_reason, "complete")
    if state == "paused" and segment.forkable:
        keep_pause(summary.run_dir / CHECKPOINTS, summary.num_timesteps)
    return RunRecord(
        seed=segment.seed,
        run_uid=summary.run_uid,
        run_id=summary.run_id,
        run_dir=str(summary.run_dir),
        state=state,
        num_timesteps=summary.num_timesteps,
        evaluations=dict(observer.evaluations),
        policy_sha256=summary.policy_sha256,
        held_out=None if summary.evaluation is None else summary.evaluation.metrics("eval").get(segment.metric),
        summary=summary.to_dict() if state == "complete" else None,
        lineage=_get_lineage(segment),
    )


def _get_lineage(segment: Segment) -> tuple[Mapping[str, Any], ...]:
    return () if segment.fork_of is None else segment.fork_of.lineage


def _describe_failure(segment: Segment, observer: TrialCallback, error: UserError | RunFailed) -> RunRecord:
    """Returns the record of a run that its settings, its environment or its numbers have ended."""
    run_dir = find_trial_dir(segment.sweep_uid, segment.key)
    checkpoint, _ = newest_good(run_dir / CHECKPOINTS)
    return RunRecord(
        seed=segment.seed,
        run_uid=make_trial_uid(segment.sweep_uid, segment.key),
        run_id=_read_run_id(run_dir),
        run_dir=str(run_dir),
        state="failed",
        num_timesteps=0 if checkpoint is None else checkpoint.num_timesteps,
        evaluations=dict(observer.evaluations),
        policy_sha256=None if checkpoint is None else checkpoint.policy_sha256,
        error=one_line(error) or error_line(error),
        lineage=_get_lineage(segment),
    )


def _read_run_id(run_dir: Path) -> str | None:
    from rl_training.run_layout import MLFLOW
    from rl_training.tracking import json_files

    address: dict[str, Any] | None = json_files.read_json(run_dir / MLFLOW)
    return None if address is None else address.get("run_id")
