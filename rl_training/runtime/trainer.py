"""The frame around every algorithm's training loop: events, evaluations, checkpoints, stops, and the result.

An algorithm's trainer, such as `ppo_trainer.py`, holds the loop. The loop calls `between_steps()` where the complete
state is consistent, for evaluations, checkpoints and stops. A resumed run continues at exactly the checkpoint's state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import torch

from rl_training.config.settings import TrainConfig
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.errors import EnvironmentFault, EnvironmentRefused, UserError
from rl_training.moved_names import adopt_old_methods
from rl_training.networks.threads import THREADS
from rl_training.runs.locks import RunLock
from rl_training.runs.progress import Progress
from rl_training.runs.single_training import train_alone
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runs.train_result import TrainResult as TrainResult
from rl_training.runs.unused_settings import warn_of_unused_settings
from rl_training.runtime.callbacks import Callback, CallbackError, CallbackList, TrainerState
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state, load_trainer_state
from rl_training.runtime.checkpoint.manifest import TRAINER
from rl_training.runtime.checkpoint_saver import LAST_PAUSES, Contents, Saver, require_no_later_checkpoint
from rl_training.runtime.inexact_resumes import (
    INEXACT,
    describe_computer,
    list_changes_of_envs,
    list_inexact_resumes,
    record_inexact_resumes,
    record_lost_best,
)
from rl_training.runtime.loop_parts.curriculum import Curriculum
from rl_training.runtime.loop_parts.named_callbacks import find_callback_secrets, make_callbacks
from rl_training.runtime.loop_parts.periodic_evaluation import STOPPED_AT_RETURN, PeriodicEvaluation
from rl_training.runtime.loop_parts.training_loop import TrainingLoop
from rl_training.runtime.policy import CurrentPolicy
from rl_training.runtime.run_utils import TrainingRun, discard_training_run
from rl_training.state_checks import describe_lack, restoring, validate
from rl_training.system.constructor_cleanup import close_on_error
from rl_training.system.paths import remember_working_folder

logger = logging.getLogger(__name__)


class Trainer(TrainingLoop):
    """One training run; `train()` runs it to its end and may be called once."""

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
        self.config, self.run = config, run
        self.callbacks = CallbackList(callbacks, make_callbacks(config), find_callback_secrets(config))
        self.stop = stop if stop is not None else StopFlag()
        self.progress = Progress()
        self.state = TrainerState(config=config, run_dir=run.run_dir, run_uid=run.run_uid, stop=self.stop)
        self.metrics: dict[str, float] = {}
        self.inexact: list[dict[str, Any]] = []
        """Earlier resumes of this run that may not have been exact; see `inexact_resumes`."""
        self.lock = RunLock(run.run_dir)
        """Held while the run changes; a caller that writes to the run before or after `train` holds it too."""
        self._restored = False
        self._saver = Saver(run, config, self._note_saved)
        self._evaluation = self._opened.enter_context(closing(PeriodicEvaluation(config)))
        self._curriculum: Curriculum | None = None

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
                logger.error("%s", error)  # must not hide the error that ended the run
            finally:
                self._close()
                self._opened.close()
        newest, best = self.state.checkpoint, self.state.best_checkpoint
        assert self.state.stop_reason is not None
        return TrainResult(
            metrics=dict(self.metrics),
            checkpoint=newest.path if newest else None,
            best_checkpoint=best.path if best else None,
            run_dir=self.run.run_dir,
            run_uid=self.run.run_uid,
            num_timesteps=self.num_timesteps,
            stop_reason=self.state.stop_reason,
            lost_best=self._saver.lost_best,
            steps_per_second=self._time_metrics()["time/steps_per_second"],
            cpu_seconds=time.thread_time() - cpu_start,
        )

    def _run_to_end(self) -> None:
        try:
            if self.state.checkpoint is not None:
                require_no_later_checkpoint(self.run, self.state.checkpoint)
            if not self._restored:
                self._begin()
            record_inexact_resumes(self.run, self.inexact)
            record_lost_best(self.run, self._saver.lost_best)
            self._offer_to_callbacks()
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

    def _begin(self) -> None:
        """Begins a new run, with the first stage of its curriculum if that has no condition."""
        if self.config.curriculum:
            self._curriculum = Curriculum(self.config, self._find_envs())
            self._curriculum.advance(0)
        self._start()

    def _offer_to_callbacks(self) -> None:
        """Gives callbacks the environments, the policy and, if one overrides `on_step`, each step."""
        envs = self._find_envs()
        self.state.envs, self.state.policy = envs, CurrentPolicy(self.policy)
        self._hears_steps = self.callbacks.listens("on_step")
        self._needs_steps = self._hears_steps or self._curriculum is not None
        if envs is not None:
            envs.collect_infos = self._hears_steps

    def between_steps(self) -> None:
        """Evaluates and saves if that is due; called wherever the complete state is consistent.

        Raises:
            StopTraining: A stop was requested.
        """
        self.check_stop()
        if self._saver.failed:
            self._saver.end()
        if self._needs_steps:
            self._require_reports()
        if self._curriculum is not None:
            self._curriculum.advance(self.num_timesteps)
        if self._evaluation.is_due(self.progress):
            self._evaluate()
        if self._saver.is_due(self.num_timesteps):
            self._save()
        self.check_stop()

    def _evaluate(self) -> None:
        try:
            result = self._evaluation.run(self.policy(), self.stop)
        except (EnvironmentFault, EnvironmentRefused) as error:
            self._save()  # the evaluation's environment failed; the state of training is consistent
            raise EnvironmentFault(f"in evaluation: {error}") from error
        self._saver.end()
        self.progress.last_evaluation = self.num_timesteps
        self.state.evaluation = result
        is_best = self.progress.best_return is None or result.return_mean >= self.progress.best_return
        if is_best:  # of equal ones the later policy, which has learned from more steps
            self.progress.best_return = result.return_mean
        if self._evaluation.ends_training(result, self.num_timesteps):
            self.stop.request("return_reached")
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
        self._note_changed_envs()
        extra = {**describe_computer(self.device, self.config.threads), INEXACT: self.inexact}
        if self.stop.cause == "return_reached":
            extra[STOPPED_AT_RETURN] = True
        trainer = {**self._trainer_state(), "callbacks": self.callbacks.state_dict()}
        if self._curriculum is not None:
            trainer["curriculum"] = self._curriculum.state_dict()
        if evaluation := self._evaluation.state_dict():
            trainer["evaluation"] = evaluation
        return Contents(
            policy=self._policy_state(),
            trainer=trainer,
            extra=extra,
            shards=self._replay_shards(),
            files=self.callbacks.files_to_sync(),
        )

    def _note_changed_envs(self) -> None:
        """Adds what callbacks have done to the environments, and a resume can't repeat, to the run's record."""
        envs = self._find_envs()
        if envs is not None and (new := list_changes_of_envs(self.inexact, envs.inexact_changes(), self.num_timesteps)):
            self.inexact = [*self.inexact, *new]
            record_inexact_resumes(self.run, self.inexact)

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
        kind = type(self)
        if kind._replay_shards is not Trainer._replay_shards and kind._load_replay is Trainer._load_replay:
            lack = f"its {kind.__name__} has no _load_replay, which restores what its _replay_shards has saved"
            raise UserError(describe_lack(self.config.algo, lack))
        self._load_replay(checkpoint)
        trainer, policy = load_trainer_state(checkpoint), load_policy_state(checkpoint)
        with restoring(checkpoint.path / TRAINER, "the state", self.config.algo):
            self.progress = validate("progress", trainer["progress"], Progress)
            self.progress.keep_numbers(EpisodeNumbers(self.config).names)
            if self.config.curriculum:
                self._curriculum = Curriculum(self.config, self._find_envs())
                self._curriculum.load_state_dict(trainer["curriculum"])
            self._evaluation.load_state_dict(trainer.get("evaluation", {}))
            fresh = self._load_states(policy, trainer)
            self.callbacks.load_state_dict(trainer["callbacks"])
        self.state.num_timesteps, self.state.iteration = self.num_timesteps, self.progress.iteration
        self._restored = True
        if checkpoint.run_uid == self.run.run_uid:
            self.state.checkpoint = checkpoint
            self.state.best_checkpoint = self._saver.resume(self.progress, checkpoint)
        else:
            self.progress.best_return = None  # a fork has its own best policy
        if self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            now = describe_computer(self.device, self.config.threads)
            self.inexact = list_inexact_resumes(checkpoint, fresh, now, changed)
        else:
            self.inexact = list_inexact_resumes(checkpoint)
            done = f"{self.num_timesteps:,} of {self.config.total_timesteps:,} steps"
            logger.info("this run is complete at %s; set a larger total_timesteps to train it further", done)

    def discard(self) -> None:
        """Closes a trainer that will not train, and removes its run unless that has trained before."""
        self._close()
        self._opened.close()
        discard_training_run(self.run)
