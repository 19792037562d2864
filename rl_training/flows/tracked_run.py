"""The tracked run of a flow run: the state that the flow's tasks share, and how the run's record is ended."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from prefect.exceptions import Abort
from prefect.runtime import deployment, flow_run

from rl_training.errors import RunTakenOver
from rl_training.flows.previous_attempt import keep_run_dir, record_run_dir, take_over_checkpoint
from rl_training.flows.supervised_training import FlowProgress, run_undisturbed, supervise
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.tracking.mlflow_names import DEPLOYMENT, FLOW, FLOW_RUN, FLOW_RUN_PAGE

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.trainer import Trainer
    from rl_training.sweeps.sweep_result import SweepResult
    from rl_training.tracking.session import RunStatus, TrackingSession
    from rl_training.tracking.shipping.shipment import ShipReport

logger = logging.getLogger(__name__)

MakeTrainer = Callable[[Sequence[Callback], StopFlag], "Trainer"]


class TrackedRun:
    """A training run within a flow run.

    This is not a dataclass, because Prefect would traverse its fields each time it is passed to a task.
    """

    def __init__(
        self,
        trainer: Trainer,
        session: TrackingSession,
        progress: FlowProgress,
        callbacks: Sequence[Callback],
        stop: StopFlag,
        *,
        has_ended: bool = False,
    ) -> None:
        self.trainer = trainer
        """The trainer of the current attempt."""
        self.session = session
        self.progress = progress
        self.stop = stop
        self._callbacks = callbacks
        self.interruption: BaseException | None = None
        """The cancel or signal that has stopped training, for the flow to raise."""
        self._attempts, self._has_ended = 0, has_ended

    @property
    def config(self) -> TrainConfig:
        """The resolved settings."""
        return self.trainer.config

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self.trainer.run.run_dir

    def newest_step(self) -> int:
        """Returns the step of the newest good checkpoint; -1 if there is none."""
        from rl_training.runtime.checkpoint import newest_good

        checkpoint, _ = newest_good(self.trainer.run.checkpoints)
        return checkpoint.num_timesteps if checkpoint is not None else -1

    def describe_stop(self) -> str:
        """Returns what a run that was stopped has saved, and how to continue it."""
        checkpoint = self.trainer.state.checkpoint
        if checkpoint is None:
            return f"stopped before the first checkpoint in {self.run_dir} was complete"
        command = f"`rl-training flow resume {shlex.quote(str(checkpoint.path))}`"
        retry = f"a retry of this flow run or {command}" if deployment.id is not None else command
        return f"stopped: saved at step {checkpoint.num_timesteps:,} in {checkpoint.path}; {retry} resumes there"

    def next_trainer(self) -> Trainer:
        """Returns the trainer for the next attempt. After the first attempt it resumes from the newest checkpoint."""
        from rl_training.experiment.default_manager import DefaultExperimentManager
        from rl_training.runtime.checkpoint import find_checkpoint

        self._attempts += 1
        if self._has_ended:  # an earlier attempt of the flow run has reached `evaluation.stop_at_return`
            self.stop.request("return_reached")
        if self._attempts > 1:  # with `self.config`, because the settings in a checkpoint hide plain secrets
            self.trainer.lock.release()
            checkpoint = find_checkpoint(self.run_dir)
            self.trainer = DefaultExperimentManager().setup(
                self.config, self._callbacks, checkpoint=checkpoint, stop=self.stop
            )
            self.trainer.lock.acquire()
        self.trainer.is_recorded = True
        return self.trainer

    def release(self) -> None:
        """Releases the run's lock, so that other processes can train it."""
        self.trainer.lock.release()

    def finish(self, status: RunStatus, *, stop_reason: str) -> str:
        """Ends the run's record, and returns what could not be sent to MLflow and the command that sends it."""
        return _warn_of_unsent(self.session.finish(status, stop_reason=stop_reason))

    def end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the run's record if the flow is interrupted by a cancel or Ctrl-C; an `ExitStack` callback.

        Raises:
            Abort: Another process has taken the run over.
        """
        if isinstance(error, RunTakenOver):
            raise Abort(str(error)) from error
        if error is None or isinstance(error, Exception):
            return
        try:
            if self._attempts == 0:  # stopped before training began: write the first checkpoint
                self.stop.request("signal")
                supervise(self.next_trainer().train, stop=self.stop)
        finally:  # a second signal, such as a worker's after a closed terminal's, must not change the record
            name = kind.__name__ if kind is not None else None
            reports: list[ShipReport] = []
            end = partial(self.session.finish, "KILLED", stop_reason="signal", error=name)
            run_undisturbed(lambda: reports.append(end()))
            for report in reports:
                _warn_of_unsent(report)


def _warn_of_unsent(report: ShipReport) -> str:
    """Returns what a report says was not sent; in a deployment, whose result nobody reads, this is logged too."""
    if report.message and deployment.id is not None:
        logger.warning(report.message)
    return report.message


@dataclass
class CallerContext:
    """Objects that a flow called in this process exchanges with its caller, besides parameters and result."""

    callbacks: Sequence[Callback] = ()
    """Callbacks of the training, besides the flow's own."""
    server_ends: bool = False
    """Whether the Prefect server ends with the caller, so that links to its pages are of no use."""
    continue_with: str | None = None
    """The command that continues a stopped sweep, for messages."""
    runs: list[TrackedRun] = field(default_factory=list)
    """The runs that the flow has opened."""
    sweeps: list[SweepResult] = field(default_factory=list)
    """The results of the sweeps that the flow has run, or how far they have come if they were stopped."""


_caller_context: ContextVar[CallerContext] = ContextVar("caller_context")


@contextmanager
def share_with_flow(
    callbacks: Sequence[Callback] = (), *, server_ends: bool = False, continue_with: str | None = None
) -> Iterator[CallerContext]:
    """Adds `callbacks` to the training of a flow called within the block, and gives access to the runs it opens."""
    context = CallerContext(callbacks, server_ends, continue_with)
    token = _caller_context.set(context)
    try:
        yield context
    finally:
        _caller_context.reset(token)


def get_caller_context() -> CallerContext:
    """Returns what this flow shares with its caller."""
    return _caller_context.get(CallerContext())


@contextmanager
def open_run(config: TrainConfig, make_trainer: MakeTrainer, tags: Mapping[str, str]) -> Iterator[TrackedRun]:
    """Opens and tracks the run of this flow run, and ends its record with the right status however the block ends.

    If an earlier attempt of this flow run has opened a run, which a retry or a crash can cause, that run is resumed.

    Args:
        config: The settings.
        make_trainer: Makes the trainer of the first attempt.
        tags: Tags for the MLflow run, besides those of every flow.

    Raises:
        UserError: The settings, the checkpoint or the tracking server can't be used, or this process is already
            training; nothing was trained.
        NoProgress: The previous attempts made no progress.
        Abort: Another process has taken the run over, and will set the state of the flow run.
    """
    from rl_training.api.training import begin_tracking, log_start
    from rl_training.runs.single_training import reserve_training
    from rl_training.runtime.loop_parts.periodic_evaluation import has_reached_return
    from rl_training.tracking.sinks.following import follow_metrics

    context = get_caller_context()
    progress, stop = FlowProgress(), StopFlag()
    callbacks: list[Callback] = [progress, *context.callbacks]
    with reserve_training(), ExitStack() as stack:
        checkpoint = take_over_checkpoint(config)
        trainer = make_trainer(callbacks, stop) if checkpoint is None else _resume(config, checkpoint, callbacks, stop)
        record_run_dir(trainer.run.run_dir)
        stack.enter_context(trainer.lock)  # until the run's record is complete, which is after training
        sessions: list[TrackingSession] = []
        try:
            # In a helper thread, so that a signal can't interrupt it and leave an MLflow run without an owner.
            supervise(lambda: sessions.append(begin_tracking(trainer, tags={**_build_tags(), **tags})), stop=stop)
        finally:
            if sessions:
                has_ended = checkpoint is not None and has_reached_return(checkpoint)
                run = TrackedRun(trainer, sessions[0], progress, callbacks, stop, has_ended=has_ended)
                stack.callback(run.release)
                stack.enter_context(follow_metrics(run.run_dir, run.config, stop))
                stack.enter_context(run.session)
                trainer.callbacks.append(run.session.callback)
                callbacks.append(run.session.callback)
                context.runs.append(run)
                stack.push(run.end)
        log_start(trainer, run.session)
        yield run


def _resume(config: TrainConfig, checkpoint: Checkpoint, callbacks: Sequence[Callback], stop: StopFlag) -> Trainer:
    from rl_training.experiment.default_manager import DefaultExperimentManager

    logger.info("this flow run has trained before; it resumes at step %s", f"{checkpoint.num_timesteps:,}")
    return DefaultExperimentManager().setup(
        keep_run_dir(config, checkpoint), callbacks, checkpoint=checkpoint, stop=stop
    )


def _build_tags() -> dict[str, str]:
    page = None if get_caller_context().server_ends else flow_run.ui_url
    tags = {
        FLOW_RUN: flow_run.id,
        FLOW_RUN_PAGE: page if page is not None and page.startswith("http") else None,
        FLOW: flow_run.flow_name,
        DEPLOYMENT: get_job_name(),
    }
    return {name: value for name, value in tags.items() if value is not None}


def get_job_name() -> str | None:
    """Returns the full name of this flow run's deployment; None if the flow was called in this process."""
    return f"{flow_run.flow_name}/{deployment.name}" if deployment.id is not None else None


def get_lock_owner() -> str | None:
    """Returns the name of this flow run for messages about its job's lock; None outside a flow run."""
    return f"flow run {flow_run.id}" if flow_run.id is not None else None
