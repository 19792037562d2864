"""Training in a helper thread, while the main thread reports progress to Prefect and waits for a cancel.

Prefect delivers a cancel as an exception in the main thread. In a training loop, the exception could interrupt an
update. Here it interrupts a wait; then the main thread asks training to stop at the next consistent step, and gives it
time to save. The main thread also makes all calls to Prefect's API, so that the training thread never waits for a
server.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.events import emit_event
from prefect.logging import get_run_logger

from rl_training.flows.artifacts_and_events import publish_run_link
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.system.signal_handlers import restore_handlers

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_SECONDS = 0.5
SAVE_SECONDS = 20.0
"""Time for training to save once it is told to stop; Prefect kills the process 30 seconds after a cancel."""
PROGRESS_SECONDS = 5.0
"""Least time between two updates of the progress artifact."""

EVALUATION_FINISHED = "rl.evaluation.finished"
"""Event: a periodic evaluation has finished."""


def supervise(work: Callable[[], T], *, stop: StopFlag, meanwhile: Callable[[], None] = lambda: None) -> T:
    """Runs `work` in a helper thread and waits for it in this one.

    Args:
        work: A function that polls `stop` and returns soon after it is set.
        stop: Set if this thread is interrupted by a cancel, a timeout or Ctrl-C.
        meanwhile: Called in this thread about twice a second, and once when `work` has returned.

    Returns:
        The result of `work`.

    Raises:
        BaseException: The exception that `work` raised. If this thread was interrupted, the exception that interrupted
            it, raised when `work` has ended or its time for saving is over.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    done = _start_thread(run, "training")
    try:
        # An event and not `Thread.join`: an exception that interrupts a join marks the thread as ended (Python 3.11).
        while not done.wait(POLL_SECONDS):
            restore_handlers()
            meanwhile()
    except BaseException:
        stop.request("signal")
        _wait_undisturbed(done, SAVE_SECONDS)
        raise
    meanwhile()
    if errors:
        raise errors[0]
    return results[0]


def run_undisturbed(work: Callable[[], object]) -> None:
    """Runs `work` in a helper thread, which no signal interrupts, and waits for it for `SAVE_SECONDS` at most.

    The handlers of signals are not replaced, because Prefect accepts a cancel only while its own handler is there. An
    error of `work` is logged, because the interruption that brought the caller here is what it raises.
    """

    def run() -> None:
        try:
            work()
        except Exception:
            logger.exception("the record of the run could not be ended")

    _wait_undisturbed(_start_thread(run, "ending"), SAVE_SECONDS)


def _start_thread(work: Callable[[], object], name: str) -> threading.Event:
    """Starts `work` in a helper thread; returns an event that is set when it ends."""
    done = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return done


def _wait_undisturbed(done: threading.Event, seconds: float) -> None:
    """Waits and ignores further signals, so that a second signal does not interrupt saving."""
    deadline = time.monotonic() + seconds
    while not done.is_set() and (left := deadline - time.monotonic()) > 0:
        with suppress(BaseException):
            done.wait(left)


class FlowProgress(Callback):
    """Collects progress for the main thread to report, at next to no cost for the training thread."""

    def __init__(self) -> None:
        self.num_timesteps = 0
        self.evaluations: SimpleQueue[dict[str, float]] = SimpleQueue()

    def on_train_start(self, state: TrainerState) -> None:
        """Records the step at which the run starts or resumes."""
        self.num_timesteps = state.num_timesteps

    def on_update_end(self, state: TrainerState) -> None:
        """Records the current step."""
        self.num_timesteps = state.num_timesteps

    def on_eval_end(self, state: TrainerState) -> None:
        """Adds an evaluation."""
        self.evaluations.put({"num_timesteps": state.num_timesteps, **state.metrics})


class FlowReporter:
    """Publishes the content of a `FlowProgress`: a progress bar, a table of evaluations, and an event for each.

    A call also publishes a link to the run's page in MLflow once it has one. If the server is away, these records are
    lost, a warning is logged once, and training continues.
    """

    def __init__(
        self,
        progress: FlowProgress,
        *,
        total_timesteps: int,
        run_uid: str,
        find_page: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._progress = progress
        self._find_page = find_page
        """Returns the address of the run's page, or None while there is none."""
        self._total = total_timesteps
        self._resource = {"prefect.resource.id": f"rl-training.run.{run_uid}", "prefect.resource.role": "run"}
        self._rows: list[dict[str, Any]] = []
        self._bar: UUID | None = None
        self._table: UUID | None = None
        self._shown = -1
        self._next_bar = 0.0
        self._failed = False

    def __call__(self) -> None:
        """Publishes what is new since the last call."""
        try:
            if (page := self._find_page()) is not None:
                self._find_page = lambda: None
                publish_run_link(page)
            self._report_progress()
            self._report_evaluations()
        except Exception as error:
            if not self._failed:
                get_run_logger().warning("progress can't be reported to Prefect, training continues: %s", error)
            self._failed = True

    def _report_progress(self) -> None:
        steps, now = self._progress.num_timesteps, time.monotonic()
        if steps == self._shown or (now < self._next_bar and steps < self._total):
            return
        self._shown, self._next_bar = steps, now + PROGRESS_SECONDS
        percent = min(100.0, 100.0 * steps / self._total)
        description = f"{steps:,} of {self._total:,} environment steps"
        if self._bar is None:
            created = create_progress_artifact(percent, key="training-progress", description=description)
            assert isinstance(created, UUID)  # not a coroutine, because this thread runs no event loop
            self._bar = created
        else:
            update_progress_artifact(self._bar, percent, description=description)

    def _report_evaluations(self) -> None:
        evaluations = []
        while True:
            try:
                evaluations.append(self._progress.evaluations.get_nowait())
            except Empty:
                break
        if not evaluations:
            return
        self._rows.extend(_format_row(evaluation) for evaluation in evaluations)
        if self._table is None:
            created = create_table_artifact(self._rows, key="evaluations", description="Periodic evaluations")
            assert isinstance(created, UUID)
            self._table = created
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(self._table, ArtifactUpdate(data=json.dumps(self._rows)))
        for evaluation in evaluations:
            emit_event(EVALUATION_FINISHED, resource=self._resource, payload=evaluation)


def _format_row(evaluation: dict[str, float]) -> dict[str, Any]:
    others = {name: f"eval/{name}" for name in ("success_rate", "raw_return_mean", "cut_episodes")}
    others |= {key.removeprefix("eval/"): key for key in evaluation if key.startswith("eval/info/")}
    return {
        "steps": int(evaluation["num_timesteps"]),
        "mean return": round(evaluation["eval/return_mean"], 2),
        "95 % from": _round(evaluation.get("eval/ci_low")),
        "95 % to": _round(evaluation.get("eval/ci_high")),
        "episodes": int(evaluation["eval/episodes"]),
        **{name.replace("_", " "): evaluation[key] for name, key in others.items() if key in evaluation},
    }


def _round(value: float | None) -> float | None:
    """Rounds a bound of the interval, which is None after a single episode."""
    return None if value is None else round(value, 2)
