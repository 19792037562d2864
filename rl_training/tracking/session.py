"""Tracks a training process: logs its metrics and starts the shipper, a process that sends them to MLflow."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rl_training import run_layout
from rl_training.config.settings import TrainConfig
from rl_training.errors import RunTakenOver, TrackingError
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.stopping import StopFlag
from rl_training.system.constructor_cleanup import close_on_error
from rl_training.system.paths import URI_VARIABLE
from rl_training.system.programs import program
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog, cut_damaged
from rl_training.tracking.mlflow_store import resolve_tracking_uri, strip_credentials
from rl_training.tracking.record_schemas import Address, Shipped
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.run_start import RunStart
from rl_training.tracking.shipping.shipment import ShipReport
from rl_training.tracking.shipping.shipper_process import ShipperProcess
from rl_training.tracking.shipping.upload_progress import count_unsent

logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

END_SECONDS, LAST_SECONDS = 15.0, 60.0
"""How long the end of a run waits for each piece to be sent, and for all; after a signal, `StopFlag.seconds_left`."""


class TrackingSession:
    """Tracks one training process; `start_tracking` creates it, and `finish` or the end of a `with` block ends it."""

    @close_on_error
    def __init__(
        self, run_dir: Path, description: Mapping[str, Any], tracking_uri: str | None, stop: StopFlag | None = None
    ) -> None:
        self._opened, self.run_dir = ExitStack(), run_dir
        self._stop = stop if stop is not None else StopFlag()
        self.run_uid: str = description["run_uid"]
        self.callback = MetricLog(run_dir)
        """The callback to hand to the trainer."""
        self._total_timesteps: int = description["total_timesteps"]
        self._report: ShipReport | None = None
        self._ending = threading.Lock()
        self._shipper = self._start = None
        if tracking_uri is not None:
            self._shipper = ShipperProcess(run_dir, tracking_uri, self._opened)
            self._start = RunStart(self._shipper, tracking_uri)

    @property
    def run_id(self) -> str | None:
        """The id of the MLflow run, or None if tracking is offline; waits until the run exists."""
        address = self.ready()
        return address["run_id"] if address is not None else None

    @property
    def ui(self) -> str | None:
        """The address of the run's page or the command that opens the UI; None if tracking is offline."""
        address = self.ready()
        return address["ui"] if address is not None else None

    @property
    def known_ui(self) -> str | None:
        """Like `ui`, but None while the run does not exist yet; never waits."""
        known = self._start.address if self._start is not None else None
        return known["ui"] if known is not None else None

    def ready(self, stop: StopFlag | None = None) -> Mapping[str, str] | None:
        """Waits until the run exists in MLflow.

        Args:
            stop: Ends the wait when it is set.

        Returns:
            `run_id`, `experiment_id` and `ui`; None if tracking is offline or has ended, or if `stop` was set.

        Raises:
            TrackingError: MLflow can't be reached or returns an error.
        """
        if self._start is None:
            return None
        return self._start.address if self._report is not None else self._start.wait(stop)

    def announce(self, stop: StopFlag) -> None:
        """Logs the page of the run once it exists; if that fails beside training, asks training to end.

        Training that has ended calls `require_start`.
        """
        if self._start is not None:
            self._start.announce(stop)

    def require_start(self) -> None:
        """Checks that the start of the run in MLflow has not failed; does not wait for it.

        Raises:
            TrackingError: MLflow can't be reached or returns an error.
        """
        if self._start is not None and self._start.error is not None:
            raise self._start.error

    def log(self, step: int, metrics: Mapping[str, float], event: str) -> None:
        """Logs metrics that no callback receives, such as those of the held-out evaluation (event `heldout`)."""
        self.callback.log(step, metrics, event)

    def log_artifact(self, name: str, content: str | bytes) -> Path:
        """Writes a file that is sent to MLflow as the artifact `name`, which may contain folders.

        Raises:
            RunTakenOver: Another process has taken the run over; nothing is written.
        """
        require_not_taken_over(self.run_dir)
        path = self.run_dir / run_layout.ARTIFACTS / name
        json_files.write_bytes(path, content.encode() if isinstance(content, str) else content)
        return path

    def finish(
        self,
        status: RunStatus,
        *,
        stop_reason: str | None = None,
        error: str | None = None,
        wait: float = END_SECONDS,
    ) -> ShipReport:
        """Ends tracking: records how the run ended, and waits until everything is sent.

        Args:
            status: How the run ended.
            stop_reason: Why training stopped.
            error: The error that ended the run, as one line.
            wait: Seconds to wait for each piece to be sent, and `LAST_SECONDS` at most for all, fewer after a signal;
                the report omits anything that is sent later.

        Returns:
            The report of how much of the run is in MLflow. A second call returns the same report.
        """
        with self._ending:  # a signal may interrupt a thread that waits here for another one to end the record
            if self._report is not None:
                return self._report
            self.callback.close()
            try:
                require_not_taken_over(self.run_dir)
            except RunTakenOver as taken:  # the other process records how the run ends
                self._report = self._make_report(str(taken))
                return self._report
            json_files.write_status(self.run_dir, status, stop_reason, error)
            self._report = self._await_report(wait)
            return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._report is not None:
            return
        if error is None:
            report = self.finish("FINISHED")
        elif isinstance(error, Exception):
            report = self.finish("FAILED", error=f"{type(error).__name__}: {error}")
        else:  # KeyboardInterrupt, SystemExit
            report = self.finish("KILLED", error=type(error).__name__)
        if report.message:
            logger.warning(report.message)

    def _await_report(self, wait: float) -> ShipReport:
        sync = f"{program('rl-training')} sync {shlex.quote(str(self.run_dir))}"
        later = f"`{sync}` sends the rest"
        if self._shipper is None or self._start is None:
            return self._make_report(f"offline: `{sync}` sends the run to MLflow")
        try:
            self._start.wait(self._stop)  # a short run ends before MLflow is imported
            self._start.catch_up(self._stop)
            self._start.limit(time.monotonic() + min(wait, self._stop.seconds_left()))
            self._shipper.announce_end()
            self._start.wait()
        except TrackingError as error:
            return self._make_report(f"{str(error).splitlines()[0]}; {later}")
        latest = time.monotonic() + LAST_SECONDS

        def get_seconds() -> float:
            return min(wait, latest - time.monotonic(), self._stop.seconds_left())

        said = self._start.read_report(get_seconds)
        if not said:
            return self._make_report(f"{self._shipper.explain_silence()}; {later}")
        self._shipper.wait(get_seconds())  # this was its last line
        report = ShipReport(**said["report"])
        if not (report.unsent or report.message) or said["elsewhere"]:
            return report
        if said["deleted"]:
            later = f"`{sync} --new-run` sends everything to a new run"
        return replace(report, message="; ".join(filter(None, [report.message, later])))

    def _make_report(self, message: str) -> ShipReport:
        """Returns a report made from the run directory, for when the shipper sends none."""
        shipped = json_files.read_json(self.run_dir / run_layout.SHIPPED, Shipped) or {}
        offset = shipped.get("offsets", {}).get(run_layout.METRICS, 0)
        unsent = count_unsent(self.run_dir, self._total_timesteps, offset)
        return ShipReport(shipped.get("points", 0), unsent, message, shipped.get("run_id"))


def _warn_of_another_store(run_dir: Path, uri: str) -> None:
    known = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
    if known is not None and known["tracking_uri"] != (shown := strip_credentials(uri)):
        logger.warning(
            "the run was tracked at %s, and is now tracked at %s; to continue its first record instead, stop it, set "
            "%s, and resume it again",
            known["tracking_uri"],
            shown,
            URI_VARIABLE,
        )


def start_tracking(
    run_dir: Path,
    config: TrainConfig,
    *,
    tracking_uri: str | None = None,
    offline: bool = False,
    tags: Mapping[str, str] | None = None,
    from_step: int = 0,
    wait: bool = True,
    stop: StopFlag | None = None,
) -> TrackingSession:
    """Starts to track a new or resumed run.

    Args:
        run_dir: The run's directory.
        config: The resolved settings.
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded store.
        offline: Whether to write files only; `sync` sends them later.
        tags: Tags of the MLflow run, in addition to those in the settings.
        from_step: The step at which training begins.
        wait: Whether to wait until the run exists in MLflow. If False, the shipper starts, which takes seconds, while
            the caller continues; the caller must then call `ready` or `announce`.
        stop: Ends the wait for MLflow before training when it is set, and after a signal limits the wait at the end.

    Raises:
        TrackingError: MLflow can't be reached or returns an error. For a server this takes at most 30 s, more on a
            busy machine.
    """
    run_dir = run_dir.absolute()
    uri = None if offline else resolve_tracking_uri(tracking_uri)
    if uri is not None:
        _warn_of_another_store(run_dir, uri)
    cut_damaged(run_dir / run_layout.METRICS)  # before the shipper reads it
    description = describe_run(run_dir, config, tags or {}, from_step)
    json_files.write_json(run_dir / run_layout.TRACKING, description)
    session = TrackingSession(run_dir, description, uri, stop)
    if wait:
        try:
            session.ready(stop)
        except TrackingError:
            if not (run_dir / run_layout.CHECKPOINTS).exists():  # never trained, so there is nothing to send
                for name in (run_layout.TRACKING, run_layout.SHIPPER_LOG, run_layout.SHIPPER_LOCK):
                    (run_dir / name).unlink(missing_ok=True)
            raise
    (run_dir / run_layout.STATUS).unlink(missing_ok=True)  # only now: a run that fails to resume keeps its status
    return session
