"""The parts of a complete run: check the environment, train and track the agent, and evaluate the final policy.

`train_and_resume.py` and the tasks of train-flow put them together.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from textwrap import indent
from typing import NoReturn

from rl_training import run_layout
from rl_training.algorithms.space_checks import include_body_and_mask
from rl_training.api.held_out_evaluation import evaluate_held_out
from rl_training.api.progress_display import can_draw, make_progress
from rl_training.api.summary import RunSummary
from rl_training.config.serialization import compact_config
from rl_training.config.settings import TrainConfig
from rl_training.envs.validation.other_processes import check_other_processes
from rl_training.envs.validation.validate import ValidationReport, require_valid, validate_env
from rl_training.errors import CheckpointNotWritten, RunFailed, TrackingError
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.health_warnings import HEALTH
from rl_training.runs.metadata import read_metadata
from rl_training.runs.stopping import EXIT_STOPPED, EXIT_TERMINATED, UNRESPONSIVE_SECONDS, StopTraining, stop_on_signals
from rl_training.runtime.callbacks import StopReason
from rl_training.runtime.checkpoint import Checkpoint, list_checkpoints, open_checkpoint
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.system.paths import home
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.mlflow_store import resolve_tracking_uri
from rl_training.tracking.session import TrackingSession, start_tracking
from rl_training.tracking.shipping.run_start import may_start_beside
from rl_training.tracking.sinks.following import follow_metrics
from rl_training.tracking.sinks.lookup import require_usable_sinks

logger = logging.getLogger(__name__)


def check_environment(config: TrainConfig) -> ValidationReport:
    """Checks that device and sinks exist, the environment satisfies its contract, and the algorithm can train on it.

    What the check doubts is logged as a warning, which Python shows without any logging set up.

    Raises:
        ConfigError: The settings name a GPU or a sink that does not exist.
        EnvironmentRefused: The environment can't be trained on; the message has one line for each reason.
    """
    resolve_device(config.device)
    require_usable_sinks(config.tracking.sinks)
    report = validate_env(config, include_body_and_mask(get_algorithm(config.algo).check_spaces, config))
    require_valid(report)
    summary, *_ = report.lines()
    logger.info(summary)
    for finding in report.warnings:
        logger.warning(finding.line())
    return report


def train_and_evaluate(
    trainer: Trainer,
    *,
    track: bool,
    offline: bool,
    progress: bool | None,
    tags: Mapping[str, str] | None = None,
) -> RunSummary:
    """Trains and evaluates, and records both; for the arguments see `rl_training.api.train_and_resume.train`.

    A run that its sweep has paused or pruned is not evaluated.

    Args:
        trainer: The trainer.
        track: Whether to log the run to MLflow.
        offline: Whether to keep the data for MLflow in the run's directory.
        progress: Whether to show the progress.
        tags: Tags of the MLflow run, in addition to those in the settings.
    """
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(trainer.stop, partial(exit_at_checkpoint, trainer)))
        stack.enter_context(trainer.lock)  # until the run's record is complete, which is after training
        # A run that has been tracked before stays tracked, so that its record in MLflow is complete.
        is_tracked = track or (trainer.run.run_dir / run_layout.TRACKING).exists()
        session = begin_tracking(trainer, offline=offline or not track, tags=tags) if is_tracked else None
        if session is not None:
            stack.enter_context(session)
        log_start(trainer, session)
        stack.enter_context(follow_metrics(trainer.run.run_dir, trainer.config, trainer.stop))
        log = session.callback if session is not None else MetricLog(trainer.run.run_dir)
        if progress or (progress is None and can_draw()):
            trainer.callbacks.append(make_progress())
        trainer.callbacks.append(log)
        trainer.is_recorded = True
        result = _train(trainer)
        if session is not None:
            session.require_start()
        trainer.stop.fulfill()  # a later request is a signal's
        evaluation = evaluate_final_policy(trainer, result, log)
        log.close()
        summary = summarize(trainer, result, evaluation, session)
        option = " --no-track" if not track else " --offline" if offline else ""
        only_here = check_other_processes(trainer.config)
        return replace(summary, resume_command=None if only_here else f"resume{option}")


def _train(trainer: Trainer) -> TrainResult:
    """Trains; if training fails, logs the checkpoint from which it can be resumed."""
    try:
        return trainer.train()
    except RunFailed as error:
        checkpoint = _find_newest_checkpoint(trainer)
        if checkpoint is not None and not isinstance(error, CheckpointNotWritten):  # its message names the checkpoint
            logger.warning("the run has failed; its newest checkpoint is %s", checkpoint.path)
        raise


def _find_newest_checkpoint(trainer: Trainer) -> Checkpoint | None:
    # From the disk, because training may not have noticed yet that the last one is complete.
    written, _ = list_checkpoints(trainer.run.checkpoints)
    return written[0] if written else trainer.state.checkpoint


def exit_at_checkpoint(trainer: Trainer) -> NoReturn:
    """Ends this process because training does not reach its next step: the environment does not return."""
    checkpoint = _find_newest_checkpoint(trainer)
    start = "there is no checkpoint yet" if checkpoint is None else f"the run can be resumed from {checkpoint.path}"
    why = f"training did not reach its next step within {UNRESPONSIVE_SECONDS:.0f} s of the signal"
    logger.error("%s; %s", why, start)
    if (trainer.run.run_dir / run_layout.TRACKING).exists():
        json_files.write_status(trainer.run.run_dir, "KILLED", "signal", why)
    os._exit(EXIT_TERMINATED if checkpoint is None else EXIT_STOPPED)


def begin_tracking(
    trainer: Trainer, *, offline: bool = False, tags: Mapping[str, str] | None = None
) -> TrackingSession:
    """Starts tracking a trainer's run; see `start_tracking`.

    Unless the run is told to stop, this waits until the run exists in MLflow. If the store is a local file, training
    need not wait: `log_start` logs the run's page later, and `TrackingSession.require_start` is called after training.

    Raises:
        TrackingError: MLflow can't be reached or refuses the run. A new run's directory is removed.
    """
    try:
        return start_tracking(
            trainer.run.run_dir,
            trainer.config,
            offline=offline,
            tags=tags,
            from_step=trainer.num_timesteps,
            wait=offline or not may_start_beside(resolve_tracking_uri()),
            stop=trainer.stop,
        )
    except TrackingError:
        trainer.discard()
        raise


def log_start(trainer: Trainer, session: TrackingSession | None) -> None:
    """Logs the run's settings, directories, device and MLflow page before training."""
    logger.info("settings:\n%s", indent(compact_config(trainer.config), "  "))
    logger.info("home: %s\nrun directory: %s", home(), trainer.run.run_dir)
    logger.info("device: %s (%s); threads: %s", trainer.device, trainer.device_reason, trainer.config.threads)
    if session is not None and not trainer.stop.requested:
        session.announce(trainer.stop)


def evaluate_final_policy(trainer: Trainer, result: TrainResult, log: MetricLog) -> EvaluationResult | None:
    """Evaluates the final checkpoint; see `evaluate_held_out`. Returns None if the run was told to stop."""
    if trainer.stop.requested or result.checkpoint is None or result.stop_reason in ("paused", "pruned"):
        return None
    try:
        return evaluate_held_out(open_checkpoint(result.checkpoint), trainer.config, result.run_dir, log, trainer.stop)
    except StopTraining:
        return None


def summarize(
    trainer: Trainer, result: TrainResult, evaluation: EvaluationResult | None, session: TrackingSession | None
) -> RunSummary:
    """Ends the run's record and returns its summary."""
    assert trainer.state.checkpoint is not None  # training always ends with a checkpoint
    stop_reason: StopReason = "signal" if trainer.stop.cause == "signal" else result.stop_reason
    run_id, ui, unsent = None, None, ""
    if session is not None:
        report = session.finish("KILLED" if stop_reason == "signal" else "FINISHED", stop_reason=stop_reason)
        run_id, ui, unsent = session.run_id, session.ui, report.message
    return RunSummary(
        run_uid=result.run_uid,
        run_dir=result.run_dir,
        checkpoint=trainer.state.checkpoint.path,
        best_checkpoint=result.best_checkpoint,
        metrics=result.metrics,
        policy_sha256=trainer.state.checkpoint.policy_sha256,
        num_timesteps=result.num_timesteps,
        stop_reason=stop_reason,
        steps_per_second=result.steps_per_second,
        cpu_seconds=result.cpu_seconds,
        evaluation=evaluation,
        run_id=run_id,
        ui=ui,
        inexact=trainer.inexact,
        lost_best=result.lost_best,
        health=read_metadata(result.run_dir).get(HEALTH, []),
        unsent=unsent,
    )
