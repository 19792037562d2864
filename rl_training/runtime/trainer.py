"""The frame around every algorithm's loop: events, evaluation, checkpoints, stopping, and what a run ends with.

An algorithm's trainer (`ppo_trainer.py`) holds the loop itself. It calls `between_steps()` wherever its whole state
is consistent; that is where evaluations and checkpoints that are due happen, and where a stop is honoured. Since
everything a trainer holds is saved there, a resumed run goes on at exactly that point.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl_training.config.settings import TrainConfig
from rl_training.errors import CheckpointError, EnvironmentFault, EnvironmentRefused
from rl_training.networks.threads import THREADS
from rl_training.runs.locks import RunLock
from rl_training.runs.progress import Progress
from rl_training.runs.single_training import train_alone
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.callbacks import Callback, CallbackError, CallbackList, Event, StopReason, TrainerState
from rl_training.runtime.checkpoint import Checkpoint, WriteShards, has_later, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import TRAINER
from rl_training.runtime.checkpoint_saver import LAST_PAUSES, Contents, Saver
from rl_training.runtime.evaluation import Evaluator
from rl_training.runtime.inexact_resumes import INEXACT, describe_computer, list_inexact_resumes, record_inexact_resumes
from rl_training.runtime.policy import Policy
from rl_training.runtime.run_utils import TrainingRun, discard_training_run
from rl_training.seeding import episode_seeds
from rl_training.state_checks import restoring, validate
from rl_training.system.constructor_cleanup import ClosesOnError
from rl_training.system.paths import remember_working_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What `Trainer.train` returns."""

    metrics: dict[str, float]
    """The newest value of each metric."""
    checkpoint: Path | None
    """The newest checkpoint, a directory."""
    best_checkpoint: Path | None
    """The checkpoint with the best periodic evaluation."""
    run_dir: Path
    run_uid: str
    num_timesteps: int
    stop_reason: StopReason
    steps_per_second: float
    """Environment steps of this process a second of `train()`, evaluation and checkpoints included."""
    cpu_seconds: float
    """CPU time of the training thread inside `train()`."""


class Trainer(ClosesOnError, ABC):
    """One training run; `train()` runs it to its end and may be called once."""

    device = torch.device("cpu")
    """Where the learning is computed; a trainer of networks chooses it by the rule of `resolve_device`."""
    device_reason = "nothing else is used"

    def __init__(
        self, config: TrainConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        self._opened = ExitStack()
        self._opened.callback(remember_working_folder())
        self.config, self.run = config, run
        self.callbacks = CallbackList(callbacks)
        self.stop = stop if stop is not None else StopFlag()
        self.progress = Progress()
        self.state = TrainerState(config=config, run_dir=run.run_dir, run_uid=run.run_uid, stop=self.stop)
        self.metrics: dict[str, float] = {}
        self.inexact: list[dict[str, Any]] = []
        """The resumes on the way here that may not have been exact; see `inexact_resumes`."""
        self.lock = RunLock(run.run_dir)
        """Held while the run is changed; a caller who writes to it before or after `train` holds it, too."""
        self._restored = False
        self._saver = Saver(run, config, self._saved)
        self._evaluator = self._opened.enter_context(closing(Evaluator(config)))
        self._evaluation_seeds = episode_seeds(config.evaluation.seed, "evaluation", config.evaluation.episodes)

    # What an algorithm's trainer provides.

    @classmethod
    def require_held(cls, config: TrainConfig, checkpoint: Checkpoint) -> None:
        """Checks, before anything is made by a checkpoint's settings, that the checkpoint is of that size."""

    @abstractmethod
    def _start(self) -> None:
        """Begins the first episodes of a run that does not resume."""

    @abstractmethod
    def _learn(self) -> None:
        """The training loop, from the current state until `total_timesteps`."""

    @abstractmethod
    def policy(self) -> Policy:
        """Returns the current greedy policy; evaluation plays it."""

    @abstractmethod
    def _policy_state(self) -> dict[str, Any]:
        """Returns what evaluation and serving need: weights, normaliser, spaces."""

    @abstractmethod
    def _trainer_state(self) -> dict[str, Any]:
        """Returns all else that training needs to go on."""

    @abstractmethod
    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        """Takes both states back; returns the environments whose episode could not be replayed."""

    def _replay_shards(self) -> WriteShards | None:
        """Returns what writes the replay buffer as it is now; None for an algorithm that has none."""
        return None

    @abstractmethod
    def _close(self) -> None:
        """Closes the training environments."""

    # The frame.

    @property
    def num_timesteps(self) -> int:
        """Real environment transitions so far."""
        return self.progress.num_timesteps

    @train_alone()
    def train(self) -> TrainResult:
        """Trains until `total_timesteps`, a stop, or an error.

        Returns:
            What came out, whatever way training ended short of an error.

        Raises:
            EnvironmentFault: An environment raised, exited or broke its contract.
            NumericError: A NaN or infinity appeared.
            CallbackError: A callback raised; a checkpoint was written first.
            AlreadyTraining: Another process is training this run.
            UserError: This process trains another run, which leaves this trainer as it is.
        """
        self._wall_start, cpu_start, self._first_step = time.perf_counter(), time.thread_time(), self.num_timesteps
        try:
            with self.lock, THREADS.using(self.config.threads), closing(self._saver):
                self._run_to_end()
        except BaseException as error:
            self.state.stop_reason, self.state.error = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            try:
                self._emit("on_train_end", self.metrics)
            except CallbackError as error:
                if self.state.error is None:
                    raise
                logger.error("%s", error)  # which does not hide what ended the run
            finally:
                self._close()
                self._opened.close()
        assert self.state.stop_reason is not None
        return TrainResult(
            metrics=dict(self.metrics),
            checkpoint=self.state.checkpoint.path if self.state.checkpoint else None,
            best_checkpoint=self.state.best_checkpoint.path if self.state.best_checkpoint else None,
            run_dir=self.run.run_dir,
            run_uid=self.run.run_uid,
            num_timesteps=self.num_timesteps,
            stop_reason=self.state.stop_reason,
            steps_per_second=self._steps_per_second(),
            cpu_seconds=time.thread_time() - cpu_start,
        )

    def _run_to_end(self) -> None:
        try:
            if self.state.checkpoint is not None:
                self.require_newest(self.state.checkpoint)
            if not self._restored:
                self._start()
            record_inexact_resumes(self.run, self.inexact)
            self._emit("on_train_start", {})
            if self.state.checkpoint is None:  # so that whatever happens, there is something to resume from
                self._saver.save(self.progress, self._contents)
            self._learn()
            if self.progress.last_evaluation < self.num_timesteps:
                self._evaluate()
            self.state.stop_reason = "completed"
        except StopTraining:
            self.state.stop_reason = self.stop.cause
        except CallbackError:
            self._save()  # the state is whole, unlike after an error inside of a step: there the last checkpoint stands
            raise
        self._saver.save(self.progress, self._contents, LAST_PAUSES)

    def between_steps(self) -> None:
        """Does what is due; called wherever the trainer's whole state is consistent.

        Raises:
            StopTraining: A stop was asked for.
        """
        self.check_stop()
        if self._saver.failed:
            self._saver.end()
        steps, every = self.num_timesteps, self.config.evaluation.every
        if steps // every > self.progress.last_evaluation // every:
            self._evaluate()
        if self._saver.due(steps):
            self._save()
        self.check_stop()

    def check_stop(self) -> None:
        """Raises `StopTraining` where a stop was asked for."""
        if self.stop.requested:
            raise StopTraining

    # Events.

    def _emit(self, event: Event, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)
        self.state.num_timesteps = self.num_timesteps
        self.state.iteration = self.progress.iteration
        self.state.metrics = metrics
        self.callbacks.call(event, self.state)

    def _log_due(self) -> bool:
        every = self.config.logging.every
        return self.num_timesteps // every > self.progress.last_log // every

    def _time_metrics(self) -> dict[str, float]:
        return {
            "time/steps_per_second": self._steps_per_second(),
            "time/wall_seconds": time.perf_counter() - self._wall_start,
        }

    def _steps_per_second(self) -> float:
        return (self.num_timesteps - self._first_step) / max(time.perf_counter() - self._wall_start, 1e-9)

    # Evaluation and checkpoints.

    def _evaluate(self) -> None:
        try:
            result = self._evaluator.run(self.policy(), self._evaluation_seeds, self.stop)
        except (EnvironmentFault, EnvironmentRefused) as error:
            self._save()  # the evaluation's environment broke; training's state is whole
            raise EnvironmentFault(f"in evaluation: {error}") from error
        self._saver.end()
        self.progress.last_evaluation = self.num_timesteps
        self.state.evaluation = result
        is_best = self.progress.best_return is None or result.return_mean >= self.progress.best_return
        if is_best:  # of equals the later one, which has learnt from more
            self.progress.best_return = result.return_mean
        try:
            self._emit("on_eval_end", result.metrics("eval"))
        finally:
            if is_best:  # after the event, so that the callbacks' state knows of it too
                self._save(is_best=True)

    def _save(self, *, is_best: bool = False) -> None:
        """Begins a checkpoint; training goes on while it is written, unless a callback listens for its end."""
        self._saver.begin(self.progress, self._contents, is_best=is_best)
        if self.callbacks.listens("on_checkpoint_end"):
            self._saver.end()

    def _contents(self) -> Contents:
        return Contents(
            policy=self._policy_state(),
            trainer={**self._trainer_state(), "callbacks": self.callbacks.state_dict()},
            extra={**describe_computer(self.device, self.config.threads), INEXACT: self.inexact},
            shards=self._replay_shards(),
            files=self.callbacks.files_to_sync(),
        )

    def _saved(self, checkpoint: Checkpoint, is_best: bool) -> None:
        self.state.checkpoint = checkpoint
        if is_best:
            self.state.best_checkpoint = checkpoint
        self._emit("on_checkpoint_end", {})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint's state, before `train()`.

        Args:
            checkpoint: A verified checkpoint of the same algorithm, environment and network; of this run, or of the run
                that this one is forked from.
        """
        trainer, policy = load_trainer_state(checkpoint), load_policy_state(checkpoint)
        with restoring(f"{checkpoint.path / TRAINER} is refused: it does not hold the state of {self.config.algo}"):
            self.progress = validate("progress", trainer["progress"], Progress)
            fresh = self._load_states(policy, trainer)
            self.callbacks.load_state_dict(trainer["callbacks"])
        self.state.num_timesteps, self.state.iteration = self.num_timesteps, self.progress.iteration
        self._restored = True
        if checkpoint.run_uid == self.run.run_uid:
            self.state.checkpoint = checkpoint
            self.state.best_checkpoint = self._saver.resume(self.progress, checkpoint)
        else:
            self.progress.best_return = None  # a fork keeps a best of its own
        if self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            self.inexact = list_inexact_resumes(checkpoint, fresh, describe_computer(self.device, self.config.threads))
        else:
            self.inexact = list_inexact_resumes(checkpoint)
            logger.info(
                "this run is complete at %s of %s steps; a larger total_timesteps trains on",
                f"{self.num_timesteps:,}",
                f"{self.config.total_timesteps:,}",
            )

    def require_newest(self, checkpoint: Checkpoint) -> None:
        """Checks, with the run's lock held, that no other process has trained the run on since a checkpoint was read.

        Raises:
            CheckpointError: One has.
        """
        if has_later(checkpoint, self.run.checkpoints):
            raise CheckpointError(
                f"the run in {self.run.run_dir} has a later checkpoint than {checkpoint.path} by now: another process "
                f"has trained it meanwhile; resume it again"
            )

    def discard(self) -> None:
        """Closes a trainer that shall not train; its run goes too, unless it has trained before."""
        self._close()
        self._opened.close()
        discard_training_run(self.run)
