"""A run that a flow has opened: what its tasks share, and how its record is closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from prefect.exceptions import Abort
from prefect.runtime import deployment, flow_run

from rl_training.errors import RunTakenOver
from rl_training.flows.previous_attempt import FLOW_RUN_TAG, as_before, earlier_checkpoint, remember
from rl_training.flows.supervised_training import FlowProgress, supervise
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback

if TYPE_CHECKING:
    from rl_training.config.settings import TrainConfig
    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.trainer import Trainer
    from rl_training.tracking.session import TrackingSession

logger = logging.getLogger(__name__)

MakeTrainer = Callable[[Sequence[Callback], StopFlag], "Trainer"]


class OpenRun:
    """One training run inside of a flow run.

    Not a dataclass: Prefect would walk through its fields each time that it is handed to a task.
    """

    def __init__(
        self,
        trainer: Trainer,
        session: TrackingSession,
        progress: FlowProgress,
        callbacks: Sequence[Callback],
        stop: StopFlag,
    ) -> None:
        self.trainer = trainer
        """Of the newest attempt."""
        self.session = session
        self.progress = progress
        self.stop = stop
        self._callbacks = callbacks
        self._attempts = 0

    @property
    def config(self) -> TrainConfig:
        """The resolved settings."""
        return self.trainer.config

    @property
    def run_dir(self) -> Path:
        """The run's own directory."""
        return self.trainer.run.run_dir

    def newest_step(self) -> int:
        """Returns the step of the newest good checkpoint; -1 where there is none."""
        from rl_training.runtime.checkpoint import newest_good

        checkpoint, _ = newest_good(self.trainer.run.checkpoints)
        return checkpoint.num_timesteps if checkpoint is not None else -1

    def next_trainer(self) -> Trainer:
        """Returns the trainer of the next attempt: the first one, then one that goes on from the newest checkpoint."""
        from rl_training.experiment.registry import get_algorithm

        self._attempts += 1
        if self._attempts > 1:  # with the settings at hand: a checkpoint's hide plain secrets
            make_trainer = get_algorithm(self.config.algo).make_trainer
            self.trainer.lock.release()
            self.trainer = make_trainer(self.config, self._callbacks, resume_from=self.run_dir, stop=self.stop)
            self.trainer.lock.acquire()
        return self.trainer

    def let_go(self) -> None:
        """Lets other processes have the run."""
        self.trainer.lock.release()

    def end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the run's record where something else than an error of its own ends the flow: a cancel, Ctrl-C.

        Raises:
            Abort: Another process has taken the run over.
        """
        if isinstance(error, RunTakenOver):
            raise Abort(str(error)) from error
        if error is None or isinstance(error, Exception):
            return
        if self._attempts == 0:  # it was stopped before it began: what it has is its first checkpoint
            self.stop.request("signal")
            supervise(self.next_trainer().train, stop=self.stop)
        self.session.finish("KILLED", stop_reason="signal", error=kind.__name__ if kind is not None else None)


@dataclass
class Caller:
    """What the caller of a flow in this process gives it and gets from it, beside parameters and result."""

    callbacks: Sequence[Callback] = ()
    """See training besides the flow's own."""
    opened: list[OpenRun] = field(default_factory=list)
    """The run, once the flow has opened it."""


_caller: ContextVar[Caller] = ContextVar("caller")


@contextmanager
def calling(callbacks: Sequence[Callback] = ()) -> Iterator[Caller]:
    """Within the block, a flow called in this process has `callbacks` see its training and shows the run it opens."""
    caller = Caller(callbacks)
    token = _caller.set(caller)
    try:
        yield caller
    finally:
        _caller.reset(token)


@contextmanager
def open_run(config: TrainConfig, make_trainer: MakeTrainer, tags: Mapping[str, str]) -> Iterator[OpenRun]:
    """Opens the run of this flow run, tracked, and closes its record with the right status however the block ends.

    A flow run that is run again, by a retry or after a crash, goes on in the run that it had opened.

    Args:
        config: The settings.
        make_trainer: Makes the trainer of the first attempt.
        tags: Put on the MLflow run, besides those of every flow.

    Raises:
        UserError: The settings, the checkpoint or the tracking server can't be used, or this process trains already;
            nothing was trained.
        NoProgress: The attempts before this one came to nothing.
        Abort: Another process has taken the run over; what becomes of the flow run is not this one's to say.
    """
    from rl_training.api.training import announce, begin_tracking
    from rl_training.runs.single_training import reserve_training

    caller = _caller.get(Caller())
    progress, stop = FlowProgress(), StopFlag()
    callbacks: list[Callback] = [progress, *caller.callbacks]
    with reserve_training(), ExitStack() as stack:
        earlier = earlier_checkpoint(config)
        trainer = make_trainer(callbacks, stop) if earlier is None else _go_on(config, earlier, callbacks, stop)
        remember(trainer.run.run_dir)
        stack.enter_context(trainer.lock)  # until the run's record is complete, beyond the end of training
        sessions: list[TrackingSession] = []
        try:
            # In a helper thread, as training: a signal in the middle of it would leave a run that nobody knows.
            supervise(lambda: sessions.append(begin_tracking(trainer, tags={**_tags(), **tags})), stop=stop)
        finally:
            if sessions:
                run = OpenRun(trainer, sessions[0], progress, callbacks, stop)
                stack.callback(run.let_go)
                stack.enter_context(run.session)
                trainer.callbacks.append(run.session.callback)
                callbacks.append(run.session.callback)
                caller.opened.append(run)
                stack.push(run.end)
        announce(trainer, run.session)
        yield run


def _go_on(config: TrainConfig, checkpoint: Checkpoint, callbacks: Sequence[Callback], stop: StopFlag) -> Trainer:
    from rl_training.experiment.registry import get_algorithm

    logger.info("this flow run has trained before; it goes on at step %s", f"{checkpoint.num_timesteps:,}")
    make_trainer = get_algorithm(config.algo).make_trainer
    return make_trainer(as_before(config, checkpoint), callbacks, resume_from=checkpoint, stop=stop)


def _tags() -> dict[str, str]:
    tags = {FLOW_RUN_TAG: flow_run.id, "prefect.flow": flow_run.flow_name, "prefect.deployment": job_name()}
    return {name: value for name, value in tags.items() if value is not None}


def job_name() -> str | None:
    """Returns the name of the deployment that this flow run is of, with its flow's; None for a flow that was called."""
    return f"{flow_run.flow_name}/{deployment.name}" if deployment.id is not None else None


def owner() -> str | None:
    """Returns for whom this flow run's job is held; None outside of a flow run."""
    return f"flow run {flow_run.id}" if flow_run.id is not None else None
