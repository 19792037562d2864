"""The end of training: why it ended, the last event, and the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_training.runs.train_result import TrainResult
from rl_training.runtime.callbacks import CallbackError, TrainerState
from rl_training.runtime.loop_parts.training_time import TrainingTime

logger = logging.getLogger(__name__)


@contextmanager
def report_end(state: TrainerState, emit_end: Callable[[], None]) -> Iterator[None]:
    """Calls `on_train_end` however the block ends, with the error in the state if the block raises one.

    Args:
        state: The state that callbacks receive.
        emit_end: Passes `on_train_end` to the callbacks.

    Raises:
        CallbackError: A callback raised at `on_train_end`, after a block without an error.
    """
    try:
        yield
    except BaseException as error:
        state.stop_reason, state.error = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        try:
            emit_end()
        except CallbackError as error:
            if state.error is None:
                raise
            logger.error("%s", error)  # must not hide the error that ended the run


def make_result(
    state: TrainerState, metrics: Mapping[str, float], time: TrainingTime, lost_best: Mapping[str, Any] | None
) -> TrainResult:
    """Returns the result.

    Args:
        state: The state that callbacks received at `on_train_end`.
        metrics: The newest value of each metric.
        time: The time that training has taken.
        lost_best: See `TrainResult.lost_best`.
    """
    assert state.stop_reason is not None
    return TrainResult(
        metrics=dict(metrics),
        checkpoint=state.checkpoint.path if state.checkpoint else None,
        best_checkpoint=state.best_checkpoint.path if state.best_checkpoint else None,
        run_dir=state.run_dir,
        run_uid=state.run_uid,
        num_timesteps=state.num_timesteps,
        stop_reason=state.stop_reason,
        lost_best=lost_best,
        steps_per_second=time.metrics(state.num_timesteps)["time/steps_per_second"],
        cpu_seconds=time.cpu_seconds(),
    )
