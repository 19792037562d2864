"""Callbacks: what sees a training run, and the state that it sees.

Six events, each handed the one `TrainerState`. All callbacks see every event, in the order given; `on_train_end` comes
exactly once, whatever ended the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl_training.config.settings import TrainConfig
from rl_training.errors import RunFailed, error_line
from rl_training.runs.stopping import StopFlag
from rl_training.runs.train_result import StopReason as StopReason

if TYPE_CHECKING:
    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.evaluation import EvaluationResult

Event = Literal["on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_checkpoint_end", "on_train_end"]


@dataclass
class TrainerState:
    """What a callback is handed. Read it; the one thing to do to a run is `request_stop()`."""

    config: TrainConfig
    """The resolved settings."""
    run_dir: Path
    """The run's own directory."""
    run_uid: str
    """The run's identity, its own from its first line on."""
    stop: StopFlag
    """The flag that collection, update and evaluation poll."""
    num_timesteps: int = 0
    """The one clock: real environment transitions so far, over all environments."""
    iteration: int = 0
    """Finished updates of the policy (PPO: rollouts learnt from; off-policy: blocks)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of this event, by their tracked names (`rollout/...`, `train/...`, `eval/...`, `time/...`)."""
    evaluation: EvaluationResult | None = None
    """The newest periodic evaluation, from `on_eval_end` on."""
    checkpoint: Checkpoint | None = None
    """The newest checkpoint, from `on_checkpoint_end` on. Where no callback listens for that event, training does not
    wait for the checkpoint, and it stands here from the next evaluation, checkpoint or end of training on."""
    best_checkpoint: Checkpoint | None = None
    """The checkpoint with the best periodic evaluation."""
    stop_reason: StopReason | None = None
    """Set at `on_train_end`."""
    error: str | None = None
    """Set at `on_train_end` where the run failed."""

    def request_stop(self) -> None:
        """Asks training to end at the next step; a checkpoint is written first."""
        self.stop.request("callback")


class CallbackError(RunFailed):
    """A callback raised; its own error is the cause."""


class Callback:
    """Base of callbacks: every event does nothing unless overridden; returning nothing means go on."""

    def on_train_start(self, state: TrainerState) -> None:
        """Called once before the first step of this process (of a new or a resumed run)."""

    def on_collect_end(self, state: TrainerState) -> None:
        """Called when a rollout (on-policy) or a block of steps (off-policy) is collected."""

    def on_update_end(self, state: TrainerState) -> None:
        """Called after each update; `state.metrics` is filled at the logging cadence and empty otherwise."""

    def on_eval_end(self, state: TrainerState) -> None:
        """Called after each periodic evaluation."""

    def on_checkpoint_end(self, state: TrainerState) -> None:
        """Called when a checkpoint is whole on disk; training waits for that where a callback overrides this."""

    def on_train_end(self, state: TrainerState) -> None:
        """Called exactly once, whatever ended the run; `state.stop_reason` says what."""

    def files_to_sync(self) -> Collection[Path]:
        """Returns the files written since it was asked last: they are on disk before the next checkpoint is."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Returns what must survive a resume: tensors, numbers, strings, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` returned."""


class CallbackList:
    """Calls each callback in the order given and keeps their states for the checkpoint."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks: list[Callback] = list(callbacks)

    def append(self, callback: Callback) -> None:
        """Adds one behind the others, before training begins: one that needs the run's directory, say."""
        self.callbacks.append(callback)

    def listens(self, event: Event) -> bool:
        """Returns whether any of them does something at `event`."""
        unheard = getattr(Callback, event)
        return any(getattr(getattr(callback, event), "__func__", None) is not unheard for callback in self.callbacks)

    def call(self, event: Event, state: TrainerState) -> None:
        """Calls `event` on every callback, also after one has raised.

        Raises:
            CallbackError: From the first error that a callback raised.
        """
        first_error: CallbackError | None = None
        for callback in self.callbacks:
            try:
                getattr(callback, event)(state)
            except Exception as error:
                if first_error is None:
                    where = f"{type(callback).__qualname__}.{event}"
                    first_error = CallbackError(f"callback {where} raised {error_line(error)}")
                    first_error.__cause__ = error
        if first_error is not None:
            raise first_error

    def files_to_sync(self) -> set[Path]:
        """Returns what all of them have written since they were asked last."""
        return {path for callback in self.callbacks for path in callback.files_to_sync()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the callbacks' states by position and class name."""
        return {self._key(i): callback.state_dict() for i, callback in enumerate(self.callbacks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives each callback its state back; a callback that the checkpoint does not know starts afresh."""
        for i, callback in enumerate(self.callbacks):
            if self._key(i) in state:
                callback.load_state_dict(state[self._key(i)])

    def _key(self, index: int) -> str:
        return f"{index}:{type(self.callbacks[index]).__qualname__}"
