"""A run that a flow has opened: what its tasks share, and how it is found again when the flow run is retried."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.runtime import deployment, flow_run

from flows.supervise import FlowProgress
from rl_training.config import paths
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.stopping import StopFlag

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
            self.trainer = make_trainer(self.config, self._callbacks, resume_from=self.run_dir, stop=self.stop)
        return self.trainer


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
def open_run(make_trainer: MakeTrainer) -> Iterator[OpenRun]:
    """Opens the run of this flow run, tracked, and closes its record with the right status however the block ends.

    A flow run that is run again (`prefect flow-run retry`) goes on in the run that it had opened.

    Raises:
        UserError: The settings, the checkpoint or the tracking server can't be used; nothing was trained.
    """
    from rl_training.api.training import announce, begin_tracking

    caller = _caller.get(Caller())
    progress, stop = FlowProgress(), StopFlag()
    callbacks: list[Callback] = [progress, *caller.callbacks]
    earlier = _earlier_run()
    trainer = _go_on(earlier, callbacks, stop) if earlier is not None else make_trainer(callbacks, stop)
    _remember(trainer.run.run_dir)
    with begin_tracking(trainer, tags=_tags()) as session:
        trainer.callbacks.append(session.callback)
        callbacks.append(session.callback)
        run = OpenRun(trainer, session, progress, callbacks, stop)
        caller.opened.append(run)
        announce(trainer, session)
        try:
            yield run
        except Exception:
            raise
        except BaseException as interruption:  # a cancel, Ctrl-C
            session.finish("KILLED", stop_reason="signal", error=type(interruption).__name__)
            raise


def _tags() -> dict[str, str]:
    tags = {"prefect.flow_run_id": flow_run.id, "prefect.flow": flow_run.flow_name, "prefect.deployment": job_name()}
    return {name: value for name, value in tags.items() if value is not None}


def job_name() -> str | None:
    """Returns the name of the deployment that this flow run is of, with its flow's; None for a flow that was called."""
    return f"{flow_run.flow_name}/{deployment.name}" if deployment.id is not None else None


def _index() -> Path | None:
    """The file that remembers the run of this flow run; None outside of a flow run."""
    return paths.home() / "flow_runs" / str(flow_run.id) if flow_run.id is not None else None


def _remember(run_dir: Path) -> None:
    index = _index()
    if index is not None:
        index.parent.mkdir(exist_ok=True)
        index.write_text(str(run_dir), encoding="utf-8")


def _earlier_run() -> Checkpoint | None:
    """The newest good checkpoint of the run that an earlier attempt at this flow run had opened."""
    from rl_training.runtime.checkpoint import newest_good

    index = _index()
    if index is None or not index.exists():
        return None
    checkpoint, _ = newest_good(Path(index.read_text(encoding="utf-8")) / "checkpoints")
    return checkpoint


def _go_on(checkpoint: Checkpoint, callbacks: Sequence[Callback], stop: StopFlag) -> Trainer:
    from rl_training.experiment.default_manager import DefaultExperimentManager

    logger.info("this flow run has trained before; it goes on at step %s", f"{checkpoint.num_timesteps:,}")
    return DefaultExperimentManager().resume(checkpoint, callbacks, stop=stop)
