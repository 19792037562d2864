"""The shipper, a process that sends a run to MLflow while it trains.

It is started with `python -m rl_training.tracking.shipping.shipper RUN_DIR`. Because it is a separate process, MLflow
can neither block training nor make it fail. Its standard input is a pipe from the training process; the pipe closes
when training ends or its process dies. The shipper prints a line of JSON when the run exists in MLflow and another at
the end. It outlives training by at most `DRAIN_SECONDS`, whatever it is doing. While training waits for the rest to be
sent, that time is counted from the last piece that was sent, so that a slow machine loses nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.runs.locks import record_takeover
from rl_training.system.process_beside import Lifetime, exit_now, reply, run_at_low_priority
from rl_training.tracking.attempts import AttemptSuperseded
from rl_training.tracking.mlflow_store import connect, explain, is_server, load_mlflow, resolve_tracking_uri
from rl_training.tracking.orphaned_runs import end_orphaned_runs, resolve_end_status
from rl_training.tracking.shipping.prometheus_file import open_prometheus_file
from rl_training.tracking.shipping.shipment import Shipment
from rl_training.tracking.shipping.shipper_process import ANSWERED, CAUGHT_UP, LOADED, SENT
from rl_training.tracking.shipping.system_metrics import SystemMetrics, read_interval

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 12.0
"""How long the shipper may outlive training; a little less than training waits for its next line."""

POLL_SECONDS = 1.0
"""Interval at which the run directory is polled, so that at most one batch is sent per second."""

FIRST_BACKOFF, LAST_BACKOFF = 0.5, 10.0
"""First and longest delay between two tries when sending fails; the delay doubles in between."""

LOCK_SECONDS = 15.0
"""How long to wait until the shipper of an earlier training process of this run has ended: a little longer than its
`DRAIN_SECONDS`, and less than training waits for this shipper."""


class Shipper:
    """Sends a run until its training process has ended, then sends the rest."""

    def __init__(self, shipment: Shipment, replies: TextIO, lifetime: Lifetime) -> None:
        self.shipment = shipment
        self._lock_file = (shipment.run_dir / run_layout.SHIPPER_LOCK).stat()
        self._replies = replies
        self._lifetime, self._over = lifetime, lifetime.over
        self._end_reported = threading.Lock()
        self._trouble, self._backoff, self._goes_on = "", FIRST_BACKOFF, True
        self._deleted = self._elsewhere = self._replaced = self._caught_up = False
        every = read_interval()
        path = shipment.run_dir / run_layout.SYSTEM_METRICS
        self._system = SystemMetrics(path, lifetime.parent, every) if every else None
        self._prometheus = open_prometheus_file(shipment)

    def run(self) -> None:
        """Sends until everything is sent after the end of training, or the run belongs to another process."""
        self._end_orphans()
        run_at_low_priority(self._send_during_training)
        self._backoff = FIRST_BACKOFF
        while self._goes_on and (pause := self._send_piece(self._resolve_status)) is not None:
            time.sleep(pause)
        self.report_end()

    def _send_during_training(self) -> None:
        pause: float | None = 0.0
        while self._goes_on and not self._over.wait(POLL_SECONDS if pause is None else pause):
            pause = self._send_piece(None)
        if not self._replaced:
            self._over.wait()

    def _send_piece(self, status: Callable[[], Mapping[str, Any]] | None) -> float | None:
        """Sends the next piece.

        Args:
            status: Returns how the run has ended, if it has.

        Returns:
            The seconds to wait before the next piece, or None if there is none.
        """
        if self._is_replaced():  # the run was taken over and has another shipper, which reports its end
            self._trouble, self._goes_on = "another process sends this run now", False
            self._elsewhere = self._replaced = True
            return None
        if self._system is not None:
            self._system.record(self.shipment.step)
        try:
            more = self.shipment.ship(status)
            if status and reply(self._replies, SENT):  # training still waits
                self._lifetime.extend()
            if not more and not self._caught_up and not status:
                self._caught_up = reply(self._replies, CAUGHT_UP)
            pause, self._backoff, self._trouble = 0.0 if more else None, FIRST_BACKOFF, ""
        except Exception as error:  # training must not notice any error; the next try sends the same piece
            pause, self._backoff = self._backoff, min(2 * self._backoff, 1.0 if status else LAST_BACKOFF)
            self._handle(error)
        if self._prometheus is not None:
            self._prometheus.record(self._trouble)
        return pause

    def report_end(self) -> None:
        """Reports once how much of the run is in MLflow."""
        if self._end_reported.acquire(blocking=False):
            if self._prometheus is not None:
                self._prometheus.remove()
            report = self.shipment.report(self._trouble)
            if not reply(
                self._replies, {"report": asdict(report), "deleted": self._deleted, "elsewhere": self._elsewhere}
            ):
                there = f"MLflow has {report.sent:,} metric values, and lacks {report.unsent:,}"
                logger.info("training is gone; %s", "; ".join(filter(None, [there, self._trouble])))

    def on_timeout(self) -> None:
        """Reports what could not be sent; this is the last action of the process."""
        if left := self.shipment.describe_unsent():
            late = f"not sent within {DRAIN_SECONDS:.0f} s: {left}"
            self._trouble = "; ".join(filter(None, [late, self._trouble]))
        self.report_end()

    def _end_orphans(self) -> None:
        try:
            for run_id in end_orphaned_runs(self.shipment.client, self.shipment.address.run_id):
                logger.info("run %s, whose processes are gone, was ended in MLflow", run_id)
        except Exception as error:  # other runs must not make this one fail; the next run tries again
            logger.warning("looking for runs whose processes are gone failed: %s", explain(error, self.shipment.uri))

    def _is_replaced(self) -> bool:
        try:
            return not os.path.samestat(self._lock_file, (self.shipment.run_dir / run_layout.SHIPPER_LOCK).stat())
        except FileNotFoundError:
            return True

    def _handle(self, error: Exception) -> None:
        if isinstance(error, AttemptSuperseded):
            self._trouble, self._elsewhere, self._goes_on = str(error), True, False
            record_takeover(self.shipment.run_dir, self._trouble)  # this tells the training process
            return
        self._trouble = explain(error, self.shipment.uri)
        logger.warning("sending failed and will be tried again: %s", self._trouble)
        try:
            if self.shipment.is_deleted():
                self._trouble = f"run {self.shipment.address.run_id} was deleted in MLflow"
                self._deleted, self._goes_on = True, False
        except Exception as another:
            logger.warning("looking up the run failed too: %s", explain(another, self.shipment.uri))

    def _resolve_status(self) -> Mapping[str, Any]:
        return resolve_end_status(self.shipment.run_dir)


def main(run_dir: Path, replies: TextIO) -> int:
    """Runs the shipper.

    Args:
        run_dir: The run's directory.
        replies: Stream that the training process reads.

    Returns:
        The exit code.
    """
    late = f"no answer within {DRAIN_SECONDS:.0f} s of the end of training"
    lifetime = Lifetime(lambda: refuse(replies, late, server=True), DRAIN_SECONDS)
    lock = FileLock(run_dir / run_layout.SHIPPER_LOCK)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        return refuse(replies, f"another process is sending {run_dir} to MLflow (it holds {run_layout.SHIPPER_LOCK})")
    with lock:
        load_mlflow()
        reply(replies, LOADED)
        shipment = Shipment(run_dir, resolve_tracking_uri())
        try:
            if is_server(shipment.uri):
                connect(shipment.uri).search_experiments(max_results=1)
                reply(replies, ANSWERED)
            address = shipment.open()
        except TrackingError as error:
            return refuse(replies, str(error))
        except Exception as error:
            return refuse(replies, explain(error, shipment.uri), server=True)
        shipper = Shipper(shipment, replies, lifetime)
        lifetime.on_timeout = shipper.on_timeout
        reply(replies, asdict(address))
        shipper.run()
    return 0


def refuse(replies: TextIO, why: str, *, server: bool = False) -> int:
    """Reports why the run can't be sent, and whether the server is the reason; returns the exit code."""
    if not reply(replies, {"error": why, "server": server}):
        logger.warning("training is gone; nothing was sent: %s", why)
    return 2


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that the output of libraries goes to the log
    try:
        exit_code = main(Path(sys.argv[1]), stdout)
    except Exception:
        logger.exception("sending has failed")
        exit_code = 1
    exit_now(exit_code)
