"""The frame around every algorithm's training loop: events, evaluations, checkpoints, stops, and the result.

An algorithm's trainer, such as `ppo_trainer.py`, holds the loop. The loop calls `between_steps()` where the complete
state is consistent, for evaluations, checkpoints and stops. A resumed run continues at exactly the checkpoint's state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import torch

from rl_training.config.settings import TrainConfig
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.errors import EnvironmentFault
from rl_training.moved_names import adopt_old_methods
from rl_training.networks.threads import THREADS
from rl_training.runs.locks import RunLock
from rl_training.runs.progress import Progress, load_progress
from rl_training.runs.single_training import train_alone
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runs.train_result import TrainResult as TrainResult
from rl_training.runs.unused_settings import warn_of_unused_settings
from rl_training.runtime.callbacks import Callback, CallbackError, CallbackList, Event, TrainerState
from rl_training.runtime.checkpoint import Checkpoint, WriteShards, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import TRAINER
from rl_training.runtime.checkpoint_saver import LAST_PAUSES, Contents, Saver, require_no_later_checkpoint
from rl_training.runtime.loop_parts.inexact_history import InexactHistory
from rl_training.runtime.loop_parts.named_callbacks import find_callback_secrets, make_callbacks
from rl_training.runtime.loop_parts.periodic_evaluation import PeriodicEvaluation, describe_stop
from rl_training.runtime.loop_parts.plug_in_checks import require_replay_loader
from rl_training.runtime.loop_parts.step_listeners import StepListeners
from rl_training.runtime.loop_parts.training_end import make_result, report_end
from rl_training.runtime.loop_parts.training_time import TrainingTime
from rl_training.runtime.policy import CurrentPolicy, Policy
from rl_training.runtime.run_utils import TrainingRun, discard_training_run
from rl_training.state_checks import restoring
from rl_training.system.constructor_cleanup import close_on_error
from rl_training.system.paths import remember_working_folder


class Trainer(ABC):
    """One training run; `train()` runs it to its end and may be called once.

    A trainer that keeps its environments in `envs`, as a `TrainingEnvs`, offers them to callbacks and curricula.
    """

    device = torch.device("cpu")
    """The device that learns; a trainer of networks chooses it with `resolve_device`."""
    device_reason = "nothing else is used"
    is_recorded = False
    """Whether the caller records and evaluates the run, so that no setting is unused."""

    def __init_subclass__(cls) -> None:
        """Makes the constructor of each kind of trainer close what it has opened if it fails."""
        if "__init__" in vars(cls):
            cls.__init__ = close_on_error(cls.__init__)  # type: ignore[method-assign]
        adopt_old_methods(cls)

    @close_on_error
    def __init__(
        self, config: TrainConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        self._opened = ExitStack()  # everything that a constructor opens; closed when training ends
        self._opened.callback(remember_working_folder())
        self.config, self.run, self.progress = config, run, Progress()
        self.callbacks = CallbackList(callbacks, make_callbacks(config), find_callback_secrets(config))
        self.stop = stop if stop is not None else StopFlag()
        self.state = TrainerState(config=config, run_dir=run.run_dir, run_uid=run.run_uid, stop=self.stop)
        self.metrics: dict[str, float] = {}
        self.lock = RunLock(run.run_dir)
        """Held while the run changes; a caller that writes to the run before or after `train` holds it too."""
        self._restored = False
        self._saver = Saver(run, config, self._note_saved)
        self._history = InexactHistory(config, run)
        self._evaluation = self._opened.enter_context(closing(PeriodicEvaluation(config)))
        self._listeners = StepListeners(config, self.callbacks, self.state, partial(self._emit, "on_step", {}))

    @staticmethod
    def require_size(config: TrainConfig, checkpoint: Checkpoint) -> None:
        """Checks that a checkpoint has the size that its settings imply, before they are used to allocate anything."""
        return

    @abstractmethod
    def _start(self) -> None:
        """Begins the first episodes of a new run."""

    @abstractmethod
    def _learn(self) -> None:
        """Runs the training loop from the current state until `total_timesteps`."""

    @abstractmethod
    def policy(self) -> Policy:
        """Returns the current greedy policy, which evaluations play."""

    @abstractmethod
    def _policy_state(self) -> dict[str, Any]:
        """Returns the state that evaluation and serving need: weights, normaliser, spaces."""

    @abstractmethod
    def _trainer_state(self) -> dict[str, Any]:
        """Returns the rest of the state that training needs to continue."""

    @abstractmethod
    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        """Restores both states; returns the environments whose episode could not be replayed."""

    def _replay_shards(self) -> WriteShards | None:
        """Returns the function that writes the current replay buffer; None for an algorithm without one."""
        return None

    def _load_replay(self, checkpoint: Checkpoint) -> None:
        """Restores the replay buffer of an algorithm that has one."""
        return

    def _close(self) -> None:
        """Closes what a trainer holds outside of `_opened`."""
        return

    def _find_envs(self) -> TrainingEnvs | None:
        """Returns the training environments for callbacks and curricula; None if a trainer has no `envs`."""
        envs = getattr(self, "envs", None)
        return envs if isinstance(envs, TrainingEnvs) else None

    @property
    def num_timesteps(self) -> int:
        """Environment steps so far, summed over all environments."""
        return self.progress.num_timesteps

    @property
    def inexact(self) -> list[dict[str, Any]]:
        """Inexact resumes of this run, and changes by callbacks that no resume repeats; see `InexactHistory`."""
        return self._history.entries

    def check_stop(self) -> None:
        """Raises `StopTraining` if a stop was requested."""
        if self.stop.requested:
            raise StopTraining

    def _emit(self, event: Event, metrics: Mapping[str, float]) -> None:
        metrics = self._listeners.add_stage(metrics)
        self.metrics.update(metrics)
        self.state.num_timesteps, self.state.iteration = self.num_timesteps, self.progress.iteration
        self.state.metrics = metrics
        self.callbacks.call(event, self.state)

    def count_step(self, step: VectorStep) -> None:
        """Counts a step of all environments and reports it to the curriculum and callbacks that override `on_step`.

        A training loop calls this method after each step, once the step is stored and the complete state is consistent.

        Raises:
            CallbackError: A callback raised.
        """
        self.progress.count_step(step, self.config.num_envs)
        if self._listeners.need_steps:
            self._listeners.hear(step)

    def _log_due(self) -> bool:
        every = self.config.logging.every
        return self.num_timesteps // every > self.progress.last_log // every

    def _time_metrics(self) -> dict[str, float]:
        return self._time.metrics(self.num_timesteps)

    @train_alone()
    def train(self) -> TrainResult:
        """Trains until `total_timesteps`, a stop request, or an error.

        Returns:
            The result, unless training ended with an error.

        Raises:
            EnvironmentFault: An environment raised, exited or broke its contract.
            NumericError: A NaN or infinity appeared.
            CallbackError: A callback raised; a checkpoint was written first.
            AlreadyTraining: Another process is training this run.
            UserError: This process is training another run; this trainer stays usable.
        """
        if not self.is_recorded:
            warn_of_unused_settings(self.config)
        self._time = TrainingTime(self.num_timesteps)
        self._opened.callback(self._close)
        ending = report_end(self.state, partial(self._emit, "on_train_end", self.metrics))
        with self._opened, ending, self.lock, THREADS.using(self.config.threads), closing(self._saver):
            self._run_to_end()
        return make_result(self.state, self.metrics, self._time, self._saver.lost_best)

    def _run_to_end(self) -> None:
        try:
            if self.state.checkpoint is not None:
                require_no_later_checkpoint(self.run, self.state.checkpoint)
            if not self._restored:
                self._listeners.begin_curriculum(self._find_envs())
                self._start()
            self._history.record(self._saver.lost_best)
            self.state.policy = CurrentPolicy(self.policy)
            self._listeners.listen(self._find_envs())
            self._emit("on_train_start", {})
            if self.state.checkpoint is None:  # a run can be resumed whatever happens next
                self._saver.save(self.progress, self._collect_contents)
            self._learn()
            if self.progress.last_evaluation < self.num_timesteps:
                self._evaluate()
            self.state.stop_reason = "completed"
        except StopTraining:
            self.state.stop_reason = self.stop.cause
        except CallbackError:
            self._save()  # the state is consistent here; after an error within a step only the last checkpoint is
            raise
        self._saver.save(self.progress, self._collect_contents, LAST_PAUSES)

    def between_steps(self) -> None:
        """Evaluates and saves if that is due; called wherever the complete state is consistent.

        Raises:
            StopTraining: A stop was requested.
        """
        self.check_stop()
        if self._saver.failed:
            self._saver.end()
        if self._listeners.need_steps:
            self._listeners.advance(self.num_timesteps, type(self).__name__)
        if self._evaluation.is_due(self.progress):
            self._evaluate()
        if self._saver.is_due(self.num_timesteps):
            self._save()
        self.stop.pause_if_due(self.num_timesteps)
        self.check_stop()

    def _evaluate(self) -> None:
        try:
            result = self._evaluation.run(self.policy(), self.stop)
        except EnvironmentFault:
            self._save()  # the evaluation's environment failed; the state of training is consistent
            raise
        self._saver.end()
        self.state.evaluation = result
        is_best = self._evaluation.judge(result, self.progress, self.stop)
        try:
            self._emit("on_eval_end", result.metrics("eval"))
        finally:
            if is_best:  # after the event, so that the saved states of callbacks include it
                self._save(is_best=True)

    def _save(self, *, is_best: bool = False) -> None:
        """Begins a checkpoint; training continues while it is written, unless a callback waits for its end."""
        self._saver.begin(self.progress, self._collect_contents, is_best=is_best)
        if self.callbacks.listens("on_checkpoint_end"):
            self._saver.end()

    def _collect_contents(self) -> Contents:
        self._history.note_changes(self._find_envs(), self.num_timesteps)
        trainer = {**self._trainer_state(), "callbacks": self.callbacks.state_dict()}
        return Contents(
            policy=self._policy_state(),
            trainer={**trainer, **self._listeners.state_dict(), **self._evaluation.state_dict()},
            extra={**self._history.describe(self.device, getattr(self, "envs", None)), **describe_stop(self.stop)},
            shards=self._replay_shards(),
            files=self.callbacks.files_to_sync(),
        )

    def _note_saved(self, checkpoint: Checkpoint, is_best: bool) -> None:
        self.state.checkpoint = checkpoint
        if is_best:
            self.state.best_checkpoint = checkpoint
        self._emit("on_checkpoint_end", {})

    def restore(self, checkpoint: Checkpoint, changed: Sequence[str] = ()) -> None:
        """Restores a checkpoint's state, before `train()`.

        Args:
            checkpoint: A verified checkpoint of this run, or of the run that this one is forked from.
            changed: Settings that differ and make the run inexact, in words.
        """
        require_replay_loader(type(self), Trainer, self.config.algo)
        self._load_replay(checkpoint)
        trainer, policy = load_trainer_state(checkpoint), load_policy_state(checkpoint)
        with restoring(checkpoint.path / TRAINER, "the state", self.config.algo):
            self.progress = load_progress(trainer["progress"], self.config)
            self._listeners.load_state_dict(trainer, self._find_envs())
            self._evaluation.load_state_dict(trainer)
            fresh = self._load_states(policy, trainer)
            self.callbacks.load_state_dict(trainer["callbacks"])
        self.state.num_timesteps, self.state.iteration = self.num_timesteps, self.progress.iteration
        self._restored = True
        if checkpoint.run_uid == self.run.run_uid:  # else this run is a fork, which has no checkpoint yet
            self.state.checkpoint = checkpoint
        self.state.best_checkpoint = self._saver.resume(self.progress, checkpoint)
        self._history.resume(checkpoint, self.progress, self.device, fresh, changed, getattr(self, "envs", None))

    def discard(self) -> None:
        """Closes a trainer that will not train, and removes its run unless that has trained before."""
        self._close()
        self._opened.close()
        discard_training_run(self.run)
