"""Callbacks, which observe a training run, and the state that they observe.

There are seven events, and each passes the same `TrainerState`. All callbacks see every event, in the given order.
`on_train_end` happens exactly once, however the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rl_training.config.settings import TrainConfig
from rl_training.errors import RunFailed, UserError, error_line, one_line
from rl_training.runs.stopping import StopFlag
from rl_training.runs.train_result import StopReason as StopReason
from rl_training.security.secrets import hide

if TYPE_CHECKING:
    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.evaluation import EvaluationResult
    from rl_training.runtime.policy import Policy

Event = Literal[
    "on_train_start",
    "on_step",
    "on_collect_end",
    "on_update_end",
    "on_eval_end",
    "on_checkpoint_end",
    "on_train_end",
]


class EnvAccess(Protocol):
    """The training environments as callbacks reach them, whatever steps them.

    A change is part of the run: it is repeated when a resumed run replays its episodes, or it marks the run as inexact.
    """

    @property
    def num_envs(self) -> int:
        """Number of environments."""

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of each environment."""

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment, from one value for all or a list or tuple with one value for each.

        Exact if the values are plain data (numbers, text, lists and dicts of these).
        """

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment and returns the results; marks the run as inexact."""

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the options of every later `reset`, in place of those in use."""


@dataclass
class TrainerState:
    """The state that callbacks receive. It is read-only, except that `request_stop()` ends the run."""

    config: TrainConfig
    """The resolved settings."""
    run_dir: Path
    """The run's directory."""
    run_uid: str
    """The run's unique identity."""
    stop: StopFlag
    """The stop flag, which collection, updates and evaluations poll."""
    num_timesteps: int = 0
    """Environment steps so far, summed over all environments; everything is scheduled by this number."""
    iteration: int = 0
    """Completed iterations: rollouts (PPO) or blocks of steps (off-policy)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics of this event by their tracked names (`rollout/...`, `train/...`, `eval/...`, `time/...`)."""
    envs: EnvAccess | None = None
    """The training environments; None for an algorithm that does not offer them."""
    infos: Sequence[Mapping[str, Any]] = ()
    """The info of each environment's newest step; set at `on_step` alone."""
    policy: Policy | None = None
    """The current greedy policy, for acting alone; it changes with each update."""
    evaluation: EvaluationResult | None = None
    """The newest periodic evaluation; None before the first `on_eval_end`."""
    checkpoint: Checkpoint | None = None
    """The newest complete checkpoint; None before the first one. If no callback overrides `on_checkpoint_end`, training
    does not wait for checkpoints, and this field changes only at the next evaluation, checkpoint or end of training."""
    best_checkpoint: Checkpoint | None = None
    """The checkpoint with the best periodic evaluation."""
    stop_reason: StopReason | None = None
    """Why training ended; set at `on_train_end`."""
    error: str | None = None
    """The error that ended the run; set at `on_train_end` if the run failed."""

    def request_stop(self) -> None:
        """Asks training to end at the next step, after writing a checkpoint."""
        self.stop.request("callback")


class CallbackError(RunFailed):
    """A callback raised an error, which is this error's cause."""


class Callback:
    """Base class of callbacks; the method of each event does nothing unless it is overridden."""

    def on_train_start(self, state: TrainerState) -> None:
        """Called once before the first step of this process, in a new or a resumed run."""

    def on_step(self, state: TrainerState) -> None:
        """Called after each step of the environments, with their infos; steps are slower if a callback overrides it."""

    def on_collect_end(self, state: TrainerState) -> None:
        """Called after a rollout (on-policy) or a block of steps (off-policy) was collected."""

    def on_update_end(self, state: TrainerState) -> None:
        """Called after each update; `state.metrics` is empty unless metrics are due by `logging.every`."""

    def on_eval_end(self, state: TrainerState) -> None:
        """Called after each periodic evaluation."""

    def on_checkpoint_end(self, state: TrainerState) -> None:
        """Called when a checkpoint is complete on disk; training waits for it if a callback overrides this method."""

    def on_train_end(self, state: TrainerState) -> None:
        """Called exactly once, however the run ends; `state.stop_reason` is the reason."""

    def files_to_sync(self) -> Collection[Path]:
        """Returns the files written since the last call; they are synced to disk before the next checkpoint."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that must survive a resume: tensors, numbers, strings, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""


def list_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    """Returns callbacks as a list.

    Raises:
        UserError: It is a single callback.
    """
    if isinstance(callbacks, Callback):
        name = type(callbacks).__name__
        raise UserError(f"callbacks: got a {name}, expected a list: [{name}(...)]")
    return list(callbacks)


class CallbackList:
    """Calls several callbacks in order, and combines their states for the checkpoint.

    Args:
        callbacks: The callbacks.
        named: The callbacks of the settings by the keys of their states; they see each event first.
        secrets: Values that the named callbacks were given and that no message may show.
    """

    def __init__(
        self,
        callbacks: Iterable[Callback],
        named: Mapping[str, Callback] = MappingProxyType({}),
        secrets: Collection[str] = (),
    ) -> None:
        self._named, self._secrets = list(named), secrets
        self.callbacks: list[Callback] = [*named.values(), *list_callbacks(callbacks)]
        for callback in self.callbacks:
            _require_callback(callback)

    def append(self, callback: Callback) -> None:
        """Adds a callback at the end before training begins, for example one that needs the run's directory."""
        self.callbacks.append(callback)

    def listens(self, event: Event) -> bool:
        """Returns whether any callback overrides the method of an event."""
        default = getattr(Callback, event)
        return any(getattr(getattr(callback, event), "__func__", None) is not default for callback in self.callbacks)

    def call(self, event: Event, state: TrainerState) -> None:
        """Calls an event's method on every callback, even after a callback has raised an error.

        Raises:
            CallbackError: A callback raised an error; the first such error is the cause.
        """
        first_error: CallbackError | None = None
        for callback in self.callbacks:
            try:
                self._ask(callback, event, state)
            except CallbackError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def files_to_sync(self) -> set[Path]:
        """Returns the files that all callbacks have written since the last call.

        Raises:
            CallbackError: A callback raised an error.
        """
        return {path for callback in self.callbacks for path in self._ask(callback, "files_to_sync")}

    def state_dict(self) -> dict[str, Any]:
        """Returns the callbacks' states; those that are not of the settings by position and class name.

        Raises:
            CallbackError: A callback raised an error.
        """
        return {self._key(i): self._ask(callback, "state_dict") for i, callback in enumerate(self.callbacks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of each callback; a callback that is not in the checkpoint keeps its initial state.

        Raises:
            CallbackError: A callback raised an error.
        """
        for i, callback in enumerate(self.callbacks):
            if self._key(i) in state:
                self._ask(callback, "load_state_dict", state[self._key(i)])

    def _ask(self, callback: Callback, method: str, *arguments: Any) -> Any:
        """Calls a method of a callback; its error is raised as a `CallbackError` without secrets."""
        try:
            return getattr(callback, method)(*arguments)
        except Exception as error:
            from rl_training.envs.contract.contract_guard import redact_cause  # imports Gymnasium

            text = hide(error_line(error), self._secrets)
            where = f"{type(callback).__qualname__}.{method}"
            raise CallbackError(f"callback {where} raised {text}") from redact_cause(error, self._secrets)

    def _key(self, index: int) -> str:
        position = index - len(self._named)
        return self._named[index] if position < 0 else f"{position}:{type(self.callbacks[index]).__qualname__}"


def _require_callback(callback: object) -> None:
    if isinstance(callback, Callback):
        return
    if isinstance(callback, type) and issubclass(callback, Callback):
        name = callback.__name__
        raise UserError(f"callbacks: got the class {name}, expected an instance: [{name}()]")
    hint = ""
    if isinstance(callback, str | Mapping):
        hint = "; name it in the settings instead (`callbacks: [module:Class]`)"
    raise UserError(f"callbacks: got {one_line(callback, repr)}, expected instances of Callback{hint}")
