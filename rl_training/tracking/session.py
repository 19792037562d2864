"""Tracks a training process: logs its metrics and starts the shipper, a process that sends them to MLflow."""

from __future__ import annotations

import json
import logging
import math
import shlex
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
from rl_training.tracking.mlflow_store import is_server, resolve_tracking_uri, strip_credentials
from rl_training.tracking.record_schemas import Shipped
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.shipment import ShipReport
from rl_training.tracking.shipping.shipper import LOADED
from rl_training.tracking.shipping.shipper_process import ShipperProcess
from rl_training.tracking.shipping.upload_progress import count_unsent

logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

SERVER_SECONDS = 15.0
"""How long a server may take for its first answer before training begins.

The imports of both processes take some seconds each unless the machine is busy, so an error is raised within 30 s.
"""

SLOW_SERVER_SECONDS = 60.0
"""How long a server that has answered may take to create the run."""

DATABASE_SECONDS = 180.0
"""The same limit for a database that is opened directly; it may have to be created first, after other runs."""

END_SECONDS = 15.0
"""How long the end of a run waits until everything is sent; after a signal, `StopFlag.seconds_left` at most."""

POLL_SECONDS = 0.2
"""Interval at which the stop flag is polled while waiting for MLflow."""


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
        self._uri = tracking_uri
        self._address: Mapping[str, str] | None = None
        self._report: ShipReport | None = None
        self._deadline = self._latest = math.inf
        self._starting = True
        self._shipper = None if tracking_uri is None else ShipperProcess(run_dir, tracking_uri, self._opened)

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

    def ready(self, stop: StopFlag | None = None) -> Mapping[str, str] | None:
        """Waits until the run exists in MLflow; call this before training begins.

        Args:
            stop: Ends the wait when it is set.

        Returns:
            `run_id`, `experiment_id` and `ui`; None if tracking is offline or has ended, or if `stop` was set.

        Raises:
            TrackingError: MLflow can't be reached or returns an error.
        """
        if self._shipper is None or self._address is not None or self._report is not None:
            return self._address
        answer: dict[str, Any] = {}
        while not answer and not self._is_late():
            if stop is not None and stop.requested:
                return None
            line = self._shipper.read_line(min(self._deadline - time.monotonic(), POLL_SECONDS))
            if line is not None:
                answer = json.loads(line) if line else self._make_silence_error()
            if "step" in answer:
                self._deadline = min(time.monotonic() + self._get_time_limit(answer), self._latest)
                answer, self._starting = {}, False
        answer = answer or self._make_silence_error()
        if "error" in answer:
            self._shipper.kill()
            if not answer["server"]:
                raise TrackingError(answer["error"])
            start = "Start the server, or set" if is_server(self._uri or "") else "Set"
            raise TrackingError(
                f"MLflow at {strip_credentials(self._uri or '')} can't be used: {answer['error']}",
                f"{start} {URI_VARIABLE} to another store; or add --offline, and send the run later with "
                f"`{program('rl-training')} sync`",
            )
        self._address = answer
        return self._address

    def log(self, step: int, metrics: Mapping[str, float], event: str) -> None:
        """Logs metrics that no callback receives, such as those of the held-out evaluation (event `heldout`)."""
        self.callback.log(step, metrics, event)

    def log_artifact(self, name: str, content: str | bytes) -> Path:
        """Writes a file that is sent to MLflow as the artifact `name`, which may contain folders."""
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
            wait: Seconds to wait at most, fewer after a signal; the report omits anything that is sent later.

        Returns:
            The report of how much of the run is in MLflow. A second call returns the same report.
        """
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

    def _is_late(self) -> bool:
        """Returns whether the shipper hangs while it starts, or MLflow has not answered in time."""
        assert self._shipper is not None
        return time.monotonic() >= self._deadline or (self._starting and self._shipper.hangs())

    def _get_time_limit(self, step: Mapping[str, Any]) -> float:
        """Returns the seconds within which the shipper must reach the next step."""
        if step != LOADED:
            return SLOW_SERVER_SECONDS
        return SERVER_SECONDS if is_server(self._uri or "") else DATABASE_SECONDS

    def _make_silence_error(self) -> dict[str, Any]:
        assert self._shipper is not None
        return {"error": self._shipper.explain_silence(), "server": True}

    def _await_report(self, wait: float) -> ShipReport:
        sync = f"{program('rl-training')} sync {shlex.quote(str(self.run_dir))}"
        later = f"`{sync}` sends the rest"
        if self._shipper is None:
            return self._make_report(f"offline: `{sync}` sends the run to MLflow")
        deadline = time.monotonic() + min(wait, self._stop.seconds_left())
        self._deadline = self._latest = min(self._deadline, deadline)
        self._shipper.announce_end()
        try:
            self.ready()
        except TrackingError as error:
            return self._make_report(f"{str(error).splitlines()[0]}; {later}")
        line = self._shipper.read_line(deadline - time.monotonic())
        if not line:
            return self._make_report(f"{self._shipper.explain_silence()}; {later}")
        self._shipper.wait(deadline - time.monotonic())  # this was its last line
        said = json.loads(line)
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
            the caller continues; the caller must then call `ready()` before training begins.
        stop: Ends the wait for MLflow before training when it is set, and after a signal limits the wait at the end.

    Raises:
        TrackingError: MLflow can't be reached or returns an error. For a server this takes at most 30 s, more on a
            busy machine.
    """
    run_dir = run_dir.absolute()
    uri = None if offline else resolve_tracking_uri(tracking_uri)
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
