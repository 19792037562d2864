"""The start of a run in MLflow: training waits for it, or it happens beside training if the store is a local file."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from rl_training.errors import TrackingError
from rl_training.runs.stopping import StopFlag
from rl_training.system.paths import URI_VARIABLE
from rl_training.system.programs import program
from rl_training.tracking.mlflow_store import get_sqlite_path, is_server, strip_credentials
from rl_training.tracking.shipping.shipper_process import CAUGHT_UP, LOADED, ShipperProcess

logger = logging.getLogger(__name__)

SERVER_SECONDS = 15.0
"""How long a server may take for its first answer before training begins.

The imports of both processes take some seconds each unless the machine is busy, so an error is raised within 30 s.
"""

SLOW_SERVER_SECONDS = 60.0
"""How long a server that has answered may take to create the run."""

DATABASE_SECONDS = 180.0
"""The same limit for a database that is opened directly; it may have to be created first, after other runs."""

POLL_SECONDS = 0.2
"""Interval at which the stop flag is polled while waiting for MLflow."""

CATCH_UP_SECONDS = 60.0
"""How much longer the end of a run may take if the run began in MLflow after training did."""

_SQLITE_HEADER = b"SQLite format 3\0"


def may_start_beside(uri: str) -> bool:
    """Returns whether training may begin before the run exists in this store, because nothing is likely to prevent it.

    That is so for an SQLite file that can be written, or made in an existing folder. All other stores are asked first.
    """
    path = get_sqlite_path(uri)
    if path is None:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER and os.access(path, os.W_OK)
    except FileNotFoundError:
        return os.access(path.parent, os.W_OK | os.X_OK)
    except OSError:
        return False


class RunStart:
    """Waits until the shipper reports that the run exists in MLflow.

    Args:
        shipper: The shipper's process.
        uri: The tracking URI.
    """

    def __init__(self, shipper: ShipperProcess, uri: str) -> None:
        self.address: Mapping[str, str] | None = None
        """`run_id`, `experiment_id` and `ui` of the run; None until it exists."""
        self.error: TrackingError | None = None
        """Why MLflow can't be used; None unless the start has failed."""
        self._shipper, self._uri = shipper, uri
        self._lock, self._began = threading.Lock(), time.monotonic()
        self._deadline = self._latest = math.inf
        self._importing, self._is_late = True, False

    def limit(self, deadline: float) -> None:
        """Ends every wait at this time of `time.monotonic` at the latest."""
        self._deadline = self._latest = min(self._deadline, deadline)

    def wait(self, stop: StopFlag | None = None) -> Mapping[str, str] | None:
        """Waits until the run exists; several threads may call this.

        Args:
            stop: Ends the wait when it is set.

        Returns:
            The address, or None if `stop` was set.

        Raises:
            TrackingError: MLflow can't be reached or returns an error.
        """
        with self._lock:
            if self.address is None and self.error is None:
                self._read_answer(stop)
        if self.error is not None:
            raise self.error
        return self.address

    def announce(self, stop: StopFlag) -> None:
        """Logs the page of the run: at once if it exists, else as soon as it does, while training continues.

        Args:
            stop: Asks training to end if MLflow can't be used; the caller then raises `error`.
        """
        if self.address is not None:
            self._log_page(self.address)
            return
        self._began, self._is_late = time.monotonic(), True
        wait = threading.Thread(target=copy_context().run, args=(self._announce_later, stop), daemon=True)
        wait.start()

    def catch_up(self, stop: StopFlag) -> None:
        """If the run began in MLflow after training did, waits until what training has recorded so far is sent.

        This takes no longer than training did, so that the run has had as much time as any other one.

        Args:
            stop: Ends the wait when it is set.
        """
        now = time.monotonic()
        until = now + min(now - self._began, CATCH_UP_SECONDS)
        while self._is_late and stop.cause is None and (now := time.monotonic()) < until:
            line = self._shipper.read_line(min(until - now, POLL_SECONDS))
            if line is not None and (not line or json.loads(line) == CAUGHT_UP):
                return

    def read_report(self, get_seconds: Callable[[], float]) -> dict[str, Any]:
        """Returns the last line of the shipper; empty if the shipper has ended or its next line has not come in time.

        Args:
            get_seconds: Returns how long to wait for the next line; called again after each.
        """
        while line := self._shipper.read_line(get_seconds()):
            said: dict[str, Any] = json.loads(line)
            if "report" in said:
                return said
        return {}

    def _announce_later(self, stop: StopFlag) -> None:
        try:
            address = self.wait(stop)
        except TrackingError:
            stop.request("failed")
            return
        if address is not None:
            self._log_page(address)

    def _log_page(self, address: Mapping[str, str]) -> None:
        logger.info("MLflow run %s: %s", address["run_id"], address["ui"])

    def _read_answer(self, stop: StopFlag | None) -> None:
        answer: dict[str, Any] = {}
        while not answer and not self._is_over():
            if stop is not None and stop.cause is not None:  # not a poll of training's, see `StopFlag.seen`
                return
            line = self._shipper.read_line(min(self._deadline - time.monotonic(), POLL_SECONDS))
            if line is not None:
                answer = json.loads(line) if line else self._make_silence_error()
            if "step" in answer:
                self._deadline = min(time.monotonic() + self._get_time_limit(answer), self._latest)
                answer, self._importing = {}, False
        answer = answer or self._make_silence_error()
        if "error" in answer:
            self._shipper.kill()
            self.error = self._explain(answer)
        else:
            self.address = answer

    def _explain(self, answer: Mapping[str, Any]) -> TrackingError:
        if not answer["server"]:
            return TrackingError(answer["error"])
        start = "Start the server, or set" if is_server(self._uri) else "Set"
        return TrackingError(
            f"MLflow at {strip_credentials(self._uri)} can't be used: {answer['error']}",
            f"{start} {URI_VARIABLE} to another store; or add --offline, and send the run later with "
            f"`{program('rl-training')} sync`",
        )

    def _is_over(self) -> bool:
        """Returns whether the shipper hangs while it starts, or MLflow has not answered in time."""
        return time.monotonic() >= self._deadline or (self._importing and self._shipper.hangs())

    def _get_time_limit(self, step: Mapping[str, Any]) -> float:
        """Returns the seconds within which the shipper must reach the next step."""
        if step != LOADED:
            return SLOW_SERVER_SECONDS
        return SERVER_SECONDS if is_server(self._uri) else DATABASE_SECONDS

    def _make_silence_error(self) -> dict[str, Any]:
        return {"error": self._shipper.explain_silence(), "server": True}
