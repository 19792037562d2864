"""The process that runs a flow: its signals, its output, and a cancel that no worker delivers.

A worker delivers a cancel by SIGTERM, and reads what its flow runs print. A flow run whose worker was killed trains on.
Then nobody reads its output, and nobody tells it that it was cancelled, so it asks the server from time to time.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Abort, TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled

from rl_training.system.signal_handlers import ignore_handlers_of_other_threads, keep_handlers
from rl_training.system.standard_streams import keep_standard_streams

logger = logging.getLogger(__name__)

ASK_SECONDS = 10.0
"""Between two questions to the server. A worker that is alive delivers a cancel within this time."""
CANCELLED = "Cancelled without its worker, which is gone. A retry resumes from the newest checkpoint."


@contextmanager
def flow_process() -> Iterator[None]:
    """Prepares this process for the flow that the block is; to be called in its main thread.

    Raises:
        Abort: The flow run was cancelled, and its worker did not deliver that; it is Cancelled now.
    """
    if deployment.id is None:  # called in this process, which the command line has prepared
        with keep_handlers(), ignore_handlers_of_other_threads():
            yield
        return
    keep_standard_streams()
    _log_to_lasting_streams()
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with keep_handlers(), ignore_handlers_of_other_threads(), _cancels_noticed(UUID(str(flow_run.id))):
        yield


def _log_to_lasting_streams() -> None:
    """Points the handlers of Prefect's loggers at the streams that outlive their reader.

    At a broken pipe, the console of such a handler would end the process.
    """
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for handler in {handler for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.__stdout__, sys.__stderr__):
            handler.setStream(sys.stdout if handler.stream is sys.__stdout__ else sys.stderr)
            if (console := getattr(handler, "console", None)) is not None:
                console.file = handler.stream


@contextmanager
def _cancels_noticed(flow_run_id: UUID) -> Iterator[None]:
    over, noticed = threading.Event(), threading.Event()
    watch = threading.Thread(target=copy_context().run, args=(_ask, flow_run_id, over, noticed), daemon=True)
    watch.start()
    try:
        yield
    except TerminationSignal:
        if not noticed.is_set():
            raise
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run_id, Cancelled(message=CANCELLED), force=True)
        raise Abort(CANCELLED) from None
    finally:
        over.set()


def _ask(flow_run_id: UUID, over: threading.Event, noticed: threading.Event) -> None:
    """Asks the server for the flow run's state, and signals this process once it is found cancelled twice in a row."""
    found = 0
    while not over.wait(ASK_SECONDS):
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run_id).state
        except Exception:  # a server that is away is no reason to stop
            continue
        found = found + 1 if state is not None and (state.is_cancelling() or state.is_cancelled()) else 0
        if found == 2:
            logger.info("this flow run was cancelled, and its worker has not delivered that: it stops by itself")
            noticed.set()
            os.kill(os.getpid(), signal.SIGTERM)
            return
