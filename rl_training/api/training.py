"""A whole run: the environment is checked, the agent trained and tracked, and the final policy judged.

`run_training` is `rl-training train`; the train flow makes tasks of the same steps.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, NoReturn

from rl_training import run_layout
from rl_training.api.judging import judge
from rl_training.api.summary import summary_lines
from rl_training.config.serialization import compact_config
from rl_training.config.settings import TrainConfig
from rl_training.envs.validation.validate import ValidationReport, require_valid, validate_env
from rl_training.errors import CheckpointNotWritten, RunFailed, TrackingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_to_resume
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.locks import job_lock
from rl_training.runs.single_training import reserve_training
from rl_training.runs.stopping import EXIT_STOPPED, EXIT_TERMINATED, UNRESPONSIVE_SECONDS, StopTraining, stop_on_signals
from rl_training.runtime.callbacks import Callback, StopReason
from rl_training.runtime.checkpoint import Checkpoint, list_checkpoints, open_checkpoint
from rl_training.runtime.evaluation import EvaluationResult, evaluation_numbers
from rl_training.runtime.fine_tuning import WeightsOf
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.system.paths import home
from rl_training.tracking import json_files
from rl_training.tracking.checkpoint_sources import download_checkpoint
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.session import TrackingSession, start_tracking

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a run came to."""

    run_uid: str
    run_dir: Path
    checkpoint: Path
    """The final checkpoint, a directory."""
    policy_sha256: str
    """Of the final checkpoint."""
    num_timesteps: int
    stop_reason: StopReason
    steps_per_second: float
    cpu_seconds: float
    """CPU time of the training thread inside `Trainer.train()`."""
    evaluation: EvaluationResult | None
    """Held-out, of the final checkpoint; None where a signal came first."""
    run_id: str | None = None
    """MLflow's; None where it is not tracked."""
    ui: str | None = None
    """Where the run can be seen: an address, or the command that opens the UI."""
    inexact: Sequence[Mapping[str, Any]] = ()
    """The resumes on the way that may not have been exact; see `rl_training.runtime.inexact_resumes`."""
    unsent: str = ""
    """What is not in MLflow, and what to do; empty where everything is there."""
    resume_words: str = "resume"
    """The command of `rl-training`, and its options, by which the run goes on as it was begun."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON; of the evaluation the numbers that sum it up."""
        return {
            "run_id": self.run_id,
            "run_uid": self.run_uid,
            "run_dir": str(self.run_dir),
            "checkpoint": str(self.checkpoint),
            "num_timesteps": self.num_timesteps,
            "stop_reason": self.stop_reason,
            "steps_per_second": self.steps_per_second,
            "cpu_seconds": self.cpu_seconds,
            "policy_sha256": self.policy_sha256,
            "evaluation": self.evaluation
            and {"checkpoint": str(self.checkpoint), **evaluation_numbers(self.evaluation.to_dict())},
            "inexact": list(self.inexact),
            "ui_command": self.ui,
            "unsent": self.unsent,
        }

    def lines(self) -> list[str]:
        """Returns it for people."""
        return summary_lines(self.to_dict(), resume=self.resume_words)


def check_environment(config: TrainConfig) -> ValidationReport:
    """Checks that the device is there, the environment keeps its contract, and the algorithm can train on it.

    Raises:
        ConfigError: The settings name a GPU that is not there.
        EnvironmentRefused: It can't be trained on; a line for every reason.
    """
    resolve_device(config.device)
    report = validate_env(config, get_algorithm(config.algo).check_spaces)
    require_valid(report)
    for line in report.lines():
        logger.info(line)
    return report


@reserve_training()
def run_training(
    config: TrainConfig,
    callbacks: Iterable[Callback] = (),
    *,
    track: bool = True,
    offline: bool = False,
) -> RunSummary:
    """Runs one experiment from its settings to a judged policy; SIGTERM and SIGINT stop it, resumable.

    Args:
        config: The settings.
        callbacks: What sees training, in the order given; the run's record comes last.
        track: Whether the run goes to MLflow.
        offline: Keep what would go there, for `rl-training sync`.

    Returns:
        What the run came to, whatever way it ended short of an error.

    Raises:
        UserError: The settings, the environment, or the tracking server can't be used, or this process trains already;
            nothing was trained.
        RunFailed: The run broke; its last good checkpoint is kept.
    """
    home()  # one that can't be written is refused before the environment is played
    check_environment(config)
    with job_lock(config.job):
        trainer = DefaultExperimentManager().setup(config, callbacks)
        return _run(trainer, track=track, offline=offline)


@reserve_training()
def resume_training(
    source: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    callbacks: Iterable[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
    track: bool = True,
    offline: bool = False,
) -> RunSummary:
    """Trains on from a checkpoint, and judges the final policy; see `run_training`.

    Args:
        source: A checkpoint's or a run's directory, an MLflow run id, `runs:/ID`, or `models:/NAME@ALIAS`.
        overrides: Settings that change: `total_timesteps` for one.
        callbacks: As in `run_training`.
        fine_tune: Begin a new run with the checkpoint's weights alone; see `DefaultExperimentManager.resume`.
        allow_modules: Modules that a received checkpoint may name; see `rl_training.config.named_modules`.
        track: As in `run_training`.
        offline: As in `run_training`.

    Raises:
        CheckpointError: There is no good checkpoint, a setting or space differs that must be equal, or no layer of the
            network fits.
        TrackingError: MLflow can't be reached, or does not know the source.
        AlreadyTraining: Another process trains the run.
        UserError: This process trains already.
        ModuleRefused: A received checkpoint names a module that nobody has allowed.
    """
    home()
    checkpoint = download_checkpoint(
        source, wanted="weights" if fine_tune else "everything", to_resume=not overrides and not fine_tune
    )
    config = config_to_resume(checkpoint, overrides, fine_tune=fine_tune, allow_modules=allow_modules)
    check_environment(config)
    with job_lock(config.job):
        resume_from = WeightsOf(checkpoint) if fine_tune else checkpoint
        trainer = get_algorithm(config.algo).make_trainer(config, callbacks, resume_from=resume_from)
        return _run(trainer, track=track, offline=offline)


def _run(trainer: Trainer, *, track: bool, offline: bool) -> RunSummary:
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(trainer.stop, partial(leave_at_checkpoint, trainer)))
        stack.enter_context(trainer.lock)  # until the run's record is complete, beyond the end of training
        in_mlflow = (trainer.run.run_dir / run_layout.TRACKING).exists()  # or to be there: its record has to go on
        session = begin_tracking(trainer, offline=offline or not track) if track or in_mlflow else None
        if session is not None:
            stack.enter_context(session)
        announce(trainer, session)
        log = session.callback if session is not None else MetricLog(trainer.run.run_dir)
        trainer.callbacks.append(log)
        result = _trained(trainer)
        if result.stop_reason == "callback":
            trainer.stop.cause = None  # that wish is granted; who asks from here on is a signal
        evaluation = judge_final_policy(trainer, result, log)
        log.close()
        summary = summarize(trainer, result, evaluation, session)
        option = " --no-track" if not track else " --offline" if offline else ""
        return replace(summary, resume_words=f"resume{option}")


def _trained(trainer: Trainer) -> TrainResult:
    """Trains; where the run breaks, it is said what there is to go on from."""
    try:
        return trainer.train()
    except RunFailed as error:
        checkpoint = _newest_written(trainer)
        if checkpoint is not None and not isinstance(error, CheckpointNotWritten):  # which says so itself
            logger.warning("the run has failed; its newest checkpoint is %s", checkpoint.path)
        raise


def _newest_written(trainer: Trainer) -> Checkpoint | None:
    written, _ = list_checkpoints(trainer.run.checkpoints)  # of the last one training may not know that it is whole
    return written[0] if written else trainer.state.checkpoint


def leave_at_checkpoint(trainer: Trainer) -> NoReturn:
    """Ends this process, whose training does not come to its next step: the environment does not return."""
    checkpoint = _newest_written(trainer)
    where = "there is no checkpoint yet" if checkpoint is None else f"the run goes on from {checkpoint.path}"
    why = f"training has not come to its next step within {UNRESPONSIVE_SECONDS:.0f} s of the signal"
    logger.error("%s; %s", why, where)
    if (trainer.run.run_dir / run_layout.TRACKING).exists():
        json_files.write_status(trainer.run.run_dir, "KILLED", "signal", why)
    os._exit(EXIT_TERMINATED if checkpoint is None else EXIT_STOPPED)


def begin_tracking(
    trainer: Trainer, *, offline: bool = False, tags: Mapping[str, str] | None = None
) -> TrackingSession:
    """Starts tracking of a trainer's run, as `start_tracking` does; waits for MLflow unless the run shall stop.

    Raises:
        TrackingError: MLflow can't be reached, or refuses; a run that has not trained before leaves nothing behind.
    """
    try:
        return start_tracking(
            trainer.run.run_dir,
            trainer.config,
            offline=offline,
            tags=tags,
            from_step=trainer.num_timesteps,
            stop=trainer.stop,
        )
    except TrackingError:
        trainer.discard()
        raise


def announce(trainer: Trainer, session: TrackingSession | None) -> None:
    """Says where the run is kept and with which settings, before it trains."""
    logger.info("settings:\n%s", indent(compact_config(trainer.config), "  "))
    logger.info("home: %s\nrun directory: %s", home(), trainer.run.run_dir)
    logger.info("device: %s (%s); threads: %s", trainer.device, trainer.device_reason, trainer.config.threads)
    if session is not None and not trainer.stop.requested and session.ui is not None:
        logger.info("MLflow run %s: %s", session.run_id, session.ui)


def judge_final_policy(trainer: Trainer, result: TrainResult, log: MetricLog) -> EvaluationResult | None:
    """Judges the final checkpoint; see `judge`.

    Args:
        trainer: What trained; its stop flag is polled between steps.
        result: What training came to.
        log: The run's record.

    Returns:
        The evaluation; None where a stop was asked for.
    """
    if trainer.stop.requested or result.checkpoint is None:
        return None
    try:
        return judge(open_checkpoint(result.checkpoint), trainer.config, result.run_dir, log, trainer.stop)
    except StopTraining:
        return None


def summarize(
    trainer: Trainer, result: TrainResult, evaluation: EvaluationResult | None, session: TrackingSession | None
) -> RunSummary:
    """Ends the run's record and returns what the run came to.

    Args:
        trainer: What trained.
        result: What training came to.
        evaluation: The held-out one, where there was one.
        session: The run's tracking, where it is tracked.
    """
    assert trainer.state.checkpoint is not None  # training ends with a checkpoint
    stop_reason: StopReason = "signal" if trainer.stop.cause == "signal" else result.stop_reason
    run_id, ui, unsent = None, None, ""
    if session is not None:
        report = session.finish("KILLED" if stop_reason == "signal" else "FINISHED", stop_reason=stop_reason)
        run_id, ui, unsent = session.run_id, session.ui, report.message
    return RunSummary(
        run_uid=result.run_uid,
        run_dir=result.run_dir,
        checkpoint=trainer.state.checkpoint.path,
        policy_sha256=trainer.state.checkpoint.policy_sha256,
        num_timesteps=result.num_timesteps,
        stop_reason=stop_reason,
        steps_per_second=result.steps_per_second,
        cpu_seconds=result.cpu_seconds,
        evaluation=evaluation,
        run_id=run_id,
        ui=ui,
        inexact=trainer.inexact,
        unsent=unsent,
    )
