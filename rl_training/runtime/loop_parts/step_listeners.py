"""Reports each step of the environments to those that need it: the curriculum, and callbacks with an `on_step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.errors import UserError
from rl_training.runtime.callbacks import CallbackList, TrainerState
from rl_training.runtime.loop_parts.curriculum import Curriculum


class StepListeners:
    """The curriculum of a run, if it has one, and the callbacks that override `on_step`.

    Args:
        config: The settings.
        callbacks: The callbacks of the run.
        state: The state that the callbacks receive.
        emit_step: Passes `on_step` to the callbacks.
    """

    def __init__(
        self, config: TrainConfig, callbacks: CallbackList, state: TrainerState, emit_step: Callable[[], None]
    ) -> None:
        self.need_steps = False
        """Whether anything needs the steps; known once `listen` was called."""
        self._config, self._callbacks, self._state, self._emit_step = config, callbacks, state, emit_step
        self._curriculum: Curriculum | None = None
        self._callback_listens = False
        self._first_step = 0
        self._heard = False

    def begin_curriculum(self, envs: TrainingEnvs | None) -> None:
        """Begins the curriculum of a new run, with its first stage if that has no condition; see `Curriculum`."""
        if self._config.curriculum:
            self._curriculum = Curriculum(self._config, envs)
            self._curriculum.advance(0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the curriculum as `curriculum`, for the training state; empty without one."""
        return {} if self._curriculum is None else {"curriculum": self._curriculum.state_dict()}

    def load_state_dict(self, trainer: Mapping[str, Any], envs: TrainingEnvs | None) -> None:
        """Restores the curriculum from a training state."""
        if self._config.curriculum:
            self._curriculum = Curriculum(self._config, envs)
            self._curriculum.load_state_dict(trainer["curriculum"])

    def add_stage(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Returns metrics with the stage of the curriculum if they are about rollouts and there is one."""
        if self._curriculum is None or "rollout/episodes" not in metrics:
            return metrics
        return {**metrics, "rollout/curriculum_stage": float(self._curriculum.stage)}

    def listen(self, envs: TrainingEnvs | None) -> None:
        """Gives callbacks the environments, which collect infos if a callback overrides `on_step`; then steps begin."""
        self._callback_listens = self._callbacks.listens("on_step")
        self.need_steps = self._callback_listens or self._curriculum is not None
        self._state.envs, self._first_step = envs, self._state.num_timesteps
        if envs is not None:
            envs.collect_infos = self._callback_listens

    def hear(self, step: VectorStep) -> None:
        """Passes a step of all environments to the curriculum and the callbacks that need it.

        Raises:
            CallbackError: A callback raised.
        """
        self._heard = True
        if self._curriculum is not None:
            self._curriculum.count(step.episodes)
        if self._callback_listens:
            self._state.infos = step.infos
            self._emit_step()
            self._state.infos = ()

    def advance(self, num_timesteps: int, trainer: str) -> None:
        """Begins stages of the curriculum that are due; call it where the state of training is consistent.

        Args:
            num_timesteps: Environment steps so far.
            trainer: The name of the trainer's class.

        Raises:
            UserError: Steps were taken, and the training loop of a custom algorithm has reported none.
        """
        if not self._heard and num_timesteps > self._first_step:
            raise UserError(
                f"{trainer} does not call count_step(step) after each step, which `on_step` of callbacks "
                f"and a curriculum need; call it instead of progress.count(step.episodes) and adding to num_timesteps"
            )
        if self._curriculum is not None:
            self._curriculum.advance(num_timesteps)
