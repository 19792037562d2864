"""Preparing the process of a flow run: its signals, its logs, and a watch for a cancel that no worker delivers.

A worker delivers a cancel as SIGTERM and reads the output of its flow runs. If the worker is killed, its flow runs
continue to train, but nothing reads their output or delivers a cancel. So each flow run polls the server for its state.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Abort, TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled

from rl_training.errors import UserError
from rl_training.system.download_directories import discard_downloads
from rl_training.system.signal_handlers import ignore_handlers_of_other_threads, keep_handlers
from rl_training.system.standard_streams import keep_standard_streams

logger = logging.getLogger(__name__)

POLL_SECONDS = 10.0
"""Time between two polls of the server. A worker that is alive delivers a cancel faster than this."""
ENGINE_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
"""The loggers with which Prefect reports that a flow run or a task run has failed."""
CANCELLED = "Cancelled without its worker, which no longer exists. A retry resumes from the newest checkpoint."


@contextmanager
def prepare_flow_process() -> Iterator[None]:
    """Prepares this process for the flow in the block. Call it in the main thread.

    Raises:
        Abort: The flow run was cancelled without its worker; its state is Cancelled now.
    """
    if deployment.id is None:  # called by the command line, which has prepared its own process
        with keep_handlers(), ignore_handlers_of_other_threads(), discard_downloads():
            yield
        return
    keep_standard_streams()
    _redirect_log_handlers()
    _shorten_logged_errors()
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with ExitStack() as stack:
        stack.enter_context(keep_handlers())
        stack.enter_context(ignore_handlers_of_other_threads())
        stack.enter_context(_watch_for_cancel(UUID(str(flow_run.id))))
        stack.enter_context(discard_downloads())
        yield


def _redirect_log_handlers() -> None:
    """Makes the log handlers write to the replaced standard streams, which ignore a broken pipe.

    With the original stream, a broken pipe would make a handler's console end the process.
    """
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for handler in {handler for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.__stdout__, sys.__stderr__):
            handler.setStream(sys.stdout if handler.stream is sys.__stdout__ else sys.stderr)
            if (console := getattr(handler, "console", None)) is not None:
                console.file = handler.stream


class UserErrorsWithoutTraceback(logging.Filter):
    """Reduces the report of an error that is for the user to fix to its message, and lets each error through once.

    Prefect reports an error with its traceback for the task, for the flow and for the process.
    """

    _last: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record is logged."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if not isinstance(error, UserError):
            return True
        is_new, UserErrorsWithoutTraceback._last = error is not self._last, error
        record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
        return is_new


def _shorten_logged_errors() -> None:
    for name in ENGINE_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, UserErrorsWithoutTraceback) for each in logger.filters):
            logger.addFilter(UserErrorsWithoutTraceback())


@contextmanager
def _watch_for_cancel(flow_run_id: UUID) -> Iterator[None]:
    ended, cancelled = threading.Event(), threading.Event()
    watch = threading.Thread(target=copy_context().run, args=(_poll_state, flow_run_id, ended, cancelled), daemon=True)
    watch.start()
    try:
        yield
    except TerminationSignal:
        if not cancelled.is_set():
            raise
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run_id, Cancelled(message=CANCELLED), force=True)
        raise Abort(CANCELLED) from None
    finally:
        ended.set()


def _poll_state(flow_run_id: UUID, ended: threading.Event, cancelled: threading.Event) -> None:
    """Polls the flow run's state, and sends this process SIGTERM once two polls in a row find it cancelled."""
    count = 0
    while not ended.wait(POLL_SECONDS):
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run_id).state
        except Exception:  # the server is away, and training continues
            continue
        count = count + 1 if state is not None and (state.is_cancelling() or state.is_cancelled()) else 0
        if count == 2:
            logger.info("this flow run was cancelled, and its worker has not delivered the cancel: stopping")
            cancelled.set()
            os.kill(os.getpid(), signal.SIGTERM)
            return
