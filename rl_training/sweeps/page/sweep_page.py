"""The page of a sweep: files in the sweep's folder, and an MLflow run above the runs of the trials.

The files are written first, so that they are there without MLflow too. A tracker that is away neither stops a sweep nor
slows it down for long: what could not be sent is sent with the next update.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_training.errors import TrackingError, error_line
from rl_training.sweeps.page.page_files import ARTIFACTS, write_comparison, write_files, write_result
from rl_training.sweeps.page.page_record import PageRecord, make_record
from rl_training.sweeps.page.page_upload import RECORD, find_known_run, open_page, send_page
from rl_training.sweeps.segments import find_sweep_dir
from rl_training.sweeps.trials import collect_trials
from rl_training.system.programs import program
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_store import connect, explain, resolve_tracking_uri, strip_credentials

if TYPE_CHECKING:
    from rl_training.sweeps.loading import Sweep
    from rl_training.sweeps.plan import Round
    from rl_training.sweeps.sweep_result import SweepResult
    from rl_training.tracking.mlflow_run import RunAddress

logger = logging.getLogger(__name__)

UPDATE_SECONDS = 60.0
"""Shortest interval between two updates while the sweep runs, because pictures take time."""

RETRY_SECONDS = 60.0
"""Interval between two attempts to reach MLflow."""

TRIES = 3
"""How often the end of a sweep is sent, with pauses of 1 and 2 seconds."""


class TrackedPage:
    """The page of one sweep."""

    def __init__(self, sweep: Sweep, *, track: bool) -> None:
        """Writes the page of a sweep without trials, and creates its run in MLflow.

        Args:
            sweep: The sweep.
            track: Whether there is a run in MLflow; the files are written in any case.

        Raises:
            TrackingError: MLflow can't be reached, and does not have the sweep yet: its trials could not be nested.
        """
        self._sweep, self.folder = sweep, find_sweep_dir(sweep.uid)
        self._sent: dict[str, tuple[int, int]] = {}
        self._updated = self._failed = -math.inf
        self._rounds: Sequence[Round] = ()
        self._address: RunAddress | None = None
        self._uri = resolve_tracking_uri() if track else None
        before = json_files.read_json(self.folder / RECORD, PageRecord)
        self._started = time.time() if before is None else before["started"]
        if before is None:
            self._write((), None, None)
        elif before["status"] != "RUNNING":
            json_files.write_json(self.folder / RECORD, {**before, "status": "RUNNING"})
        self.run_id = None if self._uri is None else self._open(self._uri)
        """The id of the sweep's run in MLflow; None without tracking."""

    def _open(self, uri: str) -> str:
        try:
            self._address = address = open_page(self.folder, uri)
        except Exception as error:  # any error of MLflow or the network
            if (known := find_known_run(self.folder, uri)) is not None:
                self._report(uri, error)
                return known
            if isinstance(error, TrackingError):
                raise
            where = strip_credentials(uri)
            raise TrackingError(
                f"MLflow at {where} can't be used: {explain(error, uri)}; --offline sends the runs later, and "
                f"--no-track keeps no record of them"
            ) from None
        self._try_to_send(uri)  # the tag of its kind, by which others tell it from a training run
        return address.run_id

    @property
    def address(self) -> str | None:
        """The address of the page in MLflow, or the command that opens it; None if it is not known."""
        return None if self._address is None else self._address.ui

    def update(self, rounds: Sequence[Round]) -> None:
        """Writes and sends the page with the complete rounds, unless it was written a short time ago."""
        self._rounds = rounds
        if time.monotonic() - self._updated < UPDATE_SECONDS:
            return
        self._try_to_write(rounds, None, None)
        self._updated = time.monotonic()
        if self._uri is not None and time.monotonic() - self._failed >= RETRY_SECONDS:
            self._try_to_send(self._uri)

    def finish(self, rounds: Sequence[Round], result: SweepResult) -> None:
        """Writes and sends the page of a sweep that has ended or was stopped.

        Args:
            rounds: The complete rounds.
            result: The result.
        """
        self._end(rounds, result, None)

    def fail(self, error: str) -> None:
        """Writes and sends the page of a sweep that has failed after the newest update, with one line that says why."""
        self._end(self._rounds, None, error)

    def _end(self, rounds: Sequence[Round], result: SweepResult | None, error: str | None) -> None:
        self._try_to_write(rounds, result, error)
        if self._uri is None:
            return
        for attempt in range(TRIES):
            if attempt:
                time.sleep(2.0 ** (attempt - 1))
            if self._try_to_send(self._uri):
                return
        logger.warning(
            "the page of the sweep is not complete in MLflow; `%s sync %s` sends what is missing",
            program("rl-training"),
            shlex.quote(str(self.folder)),
        )

    def _try_to_write(self, rounds: Sequence[Round], result: SweepResult | None, error: str | None) -> None:
        try:
            self._write(rounds, result, error)
        except Exception as fault:  # a full disk, for example; the trials matter more
            logger.warning("the files of the sweep in %s can't be written: %s", self.folder, error_line(fault))

    def _write(self, rounds: Sequence[Round], result: SweepResult | None, error: str | None) -> None:
        search, confirmation = collect_trials(rounds, "search"), collect_trials(rounds, "confirmation")
        write_files(self.folder, self._sweep, search, confirmation)
        if result is not None:
            write_result(self.folder, self._sweep, result)
            write_comparison(self.folder, result)
        pictures = [name for name in ARTIFACTS if (self.folder / name).exists()]
        record = make_record(self._sweep, search, self._started, pictures, result=result, error=error)
        json_files.write_json(self.folder / RECORD, record)

    def _try_to_send(self, uri: str) -> bool:
        """Sends the page and returns True, or logs why it can't be sent."""
        try:
            if self._address is None:
                self._address = open_page(self.folder, uri)
            send_page(connect(uri), self._address, self.folder, self._sent)
        except Exception as error:  # any error of MLflow or the network; the trials matter more
            self._report(uri, error)
            return False
        return True

    def _report(self, uri: str, error: Exception) -> None:
        self._failed = time.monotonic()
        logger.warning("the page of the sweep can't be sent to MLflow now: %s", explain(error, uri))
