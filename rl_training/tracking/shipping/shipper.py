"""The process that brings a run to MLflow while it trains: `python -m rl_training.tracking.shipping.shipper RUN_DIR`.

A process of its own, so that MLflow can neither block nor fail training. Standard input is a pipe from the training
process, whose end says that training is over, or gone; on standard output it says one line of JSON once the run is
there in MLflow, and one at the end. It outlives training by at most `DRAIN_SECONDS`, whatever it is doing then.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.runs.locks import record_takeover
from rl_training.tracking.attempts import AttemptSuperseded
from rl_training.tracking.mlflow_store import connect, explain, is_server, load_mlflow, resolve_tracking_uri
from rl_training.tracking.orphaned_runs import end_orphaned_runs, resolve_end_status
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.shipping.system_metrics import SystemMetrics, interval

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 12.0
"""How long the process may outlive training; a little less than training waits for its last word."""

LOADED, ANSWERED = {"step": "loaded"}, {"step": "answered"}
"""What the process says first: that MLflow is imported and the store is asked now, and that a server has answered."""

POLL_SECONDS = 1.0
"""Between two looks at the run directory: a batch a second at most."""

FIRST_BACKOFF, LAST_BACKOFF = 0.5, 10.0
"""Seconds between two tries when the server is in trouble: doubled from the first to the last."""

LOCK_SECONDS = 15.0
"""How long to wait for the shipper of an earlier training process of this run to end: a little more than it drains, and
less than training waits for this one."""


class Lifetime:
    """Watches the training process from this one's first moment, and ends this one `DRAIN_SECONDS` after it.

    Made before this process is made to yield to others, so that its thread does not yield.

    Args:
        time_is_up: Called right before the end.
    """

    def __init__(self, time_is_up: Callable[[], object]) -> None:
        self.over = threading.Event()
        """Set once training is done or gone."""
        self.parent = os.getppid()
        self.time_is_up: Callable[[], object] = time_is_up
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self.parent:
            readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
        self.over.set()
        time.sleep(DRAIN_SECONDS)
        try:
            self.time_is_up()
        finally:
            leave(1)  # the main thread may hang in a request; every piece is sent again by `sync`


class Shipper:
    """Follows one run until its training process is done or gone, then sends the rest."""

    def __init__(self, shipment: Shipment, replies: TextIO, lifetime: Lifetime) -> None:
        self.shipment = shipment
        self._lock_file = (shipment.run_dir / run_layout.SHIPPER_LOCK).stat()
        self._replies = replies
        self._over = lifetime.over
        self._said_end = threading.Lock()
        self._trouble, self._deleted, self._elsewhere = "", False, False
        every = interval()
        path = shipment.run_dir / run_layout.SYSTEM_METRICS
        self._system = SystemMetrics(path, lifetime.parent, every) if every else None

    def run(self) -> None:
        """Ships until there is no more, or time is up."""
        self._end_others()
        backoff = FIRST_BACKOFF
        while True:
            over = self._over.is_set()
            if self._replaced():  # the run was taken over, and has another shipper; how it ends is not ours to say
                self._trouble, self._elsewhere = "another process sends this run now", True
                return self.say_end()
            if self._system is not None:
                self._system.record(self.shipment.step)
            try:
                more = self.shipment.ship(self._status if over else None)
                pause, backoff, self._trouble = (0.0 if more else POLL_SECONDS), FIRST_BACKOFF, ""
            except Exception as error:  # whatever it is: training must not care, and the next try sends the same again
                more, pause = True, backoff
                backoff = min(2 * backoff, 1.0 if over else LAST_BACKOFF)
                self._note(error)
            hopeless = self._deleted or self._elsewhere
            if hopeless:
                self._over.wait()
            if hopeless or (over and not more):
                return self.say_end()
            if not over:
                self._over.wait(pause)
            elif pause:
                time.sleep(pause)

    def say_end(self) -> None:
        """Says once what is in MLflow and what is not."""
        if self._said_end.acquire(blocking=False):
            report = self.shipment.report(self._trouble)
            if not say(
                self._replies, {"report": asdict(report), "deleted": self._deleted, "elsewhere": self._elsewhere}
            ):
                there = f"MLflow has {report.sent:,} metric values, and lacks {report.unsent:,}"
                logger.info("training is gone; %s", "; ".join(filter(None, [there, self._trouble])))

    def time_is_up(self) -> None:
        """Says what could not be sent, as the last thing that this process does."""
        if left := self.shipment.left():
            late = f"not sent within {DRAIN_SECONDS:.0f} s: {left}"
            self._trouble = "; ".join(filter(None, [late, self._trouble]))
        self.say_end()

    def _end_others(self) -> None:
        try:
            for run_id in end_orphaned_runs(self.shipment.client, self.shipment.address.run_id):
                logger.info("run %s, whose processes are gone, was ended in MLflow", run_id)
        except Exception as error:  # the runs of others are no reason to fail this one's; the next run looks again
            logger.warning("looking for runs whose processes are gone failed: %s", explain(error, self.shipment.uri))

    def _replaced(self) -> bool:
        try:
            return not os.path.samestat(self._lock_file, (self.shipment.run_dir / run_layout.SHIPPER_LOCK).stat())
        except FileNotFoundError:
            return True

    def _note(self, error: Exception) -> None:
        if isinstance(error, AttemptSuperseded):
            self._elsewhere, self._trouble = True, str(error)
            record_takeover(self.shipment.run_dir, self._trouble)  # training hears of it by this
            return
        self._trouble = explain(error, self.shipment.uri)
        logger.warning("sending failed, to be tried again: %s", self._trouble)
        try:
            if self.shipment.deleted():
                self._deleted, self._trouble = True, f"run {self.shipment.address.run_id} was deleted in MLflow"
        except Exception as another:
            logger.warning("asking for the run failed too: %s", explain(another, self.shipment.uri))

    def _status(self) -> Mapping[str, Any]:
        return resolve_end_status(self.shipment.run_dir)


def say(replies: TextIO, message: Mapping[str, Any]) -> bool:
    """Writes one line of JSON for the training process; returns whether that is there to read it."""
    try:
        print(json.dumps(message), file=replies, flush=True)
    except OSError:
        return False
    return True


def leave(code: int) -> NoReturn:
    """Ends this process at once: the interpreter's own end takes long on a busy machine, and everything is written."""
    logging.shutdown()
    os._exit(code)


def main(run_dir: Path, replies: TextIO) -> int:
    """Runs the shipper.

    Args:
        run_dir: The run's directory.
        replies: Where the training process listens.

    Returns:
        The exit code.
    """
    late = f"no answer within {DRAIN_SECONDS:.0f} s of the end of training"
    lifetime = Lifetime(lambda: refuse(replies, late, server=True))
    lock = FileLock(run_dir / run_layout.SHIPPER_LOCK)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        return refuse(replies, f"another process is sending {run_dir} to MLflow (it holds {run_layout.SHIPPER_LOCK})")
    with lock:
        load_mlflow()
        say(replies, LOADED)
        shipment = Shipment(run_dir, resolve_tracking_uri())
        try:
            if is_server(shipment.uri):
                connect(shipment.uri).search_experiments(max_results=1)
                say(replies, ANSWERED)
            address = shipment.open()
        except TrackingError as error:
            return refuse(replies, str(error))
        except Exception as error:
            return refuse(replies, explain(error, shipment.uri), server=True)
        shipper = Shipper(shipment, replies, lifetime)
        lifetime.time_is_up = shipper.time_is_up
        say(replies, asdict(address))
        os.nice(10)  # training comes first
        shipper.run()
    return 0


def refuse(replies: TextIO, why: str, *, server: bool = False) -> int:
    """Says why the run can't be sent, and whether that is the server's trouble; returns the exit code."""
    if not say(replies, {"error": why, "server": server}):
        logger.warning("training is gone; nothing was sent: %s", why)
    return 2


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints goes to the log
    try:
        exit_code = main(Path(sys.argv[1]), stdout)
    except Exception:
        logger.exception("sending has failed")
        exit_code = 1
    leave(exit_code)
