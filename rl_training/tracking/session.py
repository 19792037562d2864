"""Tracking of one training process: the metric log, and the shipper process beside it."""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import rl_training
from rl_training import run_layout
from rl_training.config.settings import TrainConfig
from rl_training.errors import RunTakenOver, TrackingError
from rl_training.runs.locks import require_not_taken_over
from rl_training.runs.stopping import StopFlag
from rl_training.system.constructor_cleanup import close_on_error, kill_on_close
from rl_training.system.paths import URI_VARIABLE
from rl_training.system.programs import program
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog, cut_damaged
from rl_training.tracking.mlflow_store import is_server, resolve_tracking_uri, strip_credentials
from rl_training.tracking.record_schemas import Shipped
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.shipment import ShipReport
from rl_training.tracking.shipping.shipper import LOADED
from rl_training.tracking.shipping.start_watch import StartWatch
from rl_training.tracking.shipping.upload_progress import count_unsent

logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

SERVER_SECONDS = 15.0
"""How long a server may take to its first answer, before training begins.

With the imports of both processes, some seconds each unless the machine is busy, an error comes within 30 s.
"""

SLOW_SERVER_SECONDS = 60.0
"""How long a server that has answered may take to take the run in."""

DATABASE_SECONDS = 180.0
"""The same for a database that is opened directly, which may have to be made first, in turn with other runs."""

END_SECONDS = 15.0
"""How long the end of a run waits for what is left to be sent; after a signal, `StopFlag.seconds_left` at most."""

POLL_SECONDS = 0.2
"""Between two looks at whether the run shall end, while it waits for MLflow."""


class TrackingSession:
    """Tracks one training process; made by `start_tracking`, ended by `finish` or as a context manager."""

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
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._deadline = self._latest = math.inf
        self._start: StartWatch | None = None
        self._process = None if tracking_uri is None else self._spawn(tracking_uri)

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None where tracking is offline. Waits until the run is there, unless it has ended."""
        address = self.ready()
        return address["run_id"] if address is not None else None

    @property
    def ui(self) -> str | None:
        """Where the run can be seen: an address, or the command that opens the UI; None where tracking is offline."""
        address = self.ready()
        return address["ui"] if address is not None else None

    def ready(self, stop: StopFlag | None = None) -> Mapping[str, str] | None:
        """Waits until the run is there in MLflow; to be called before training begins.

        Args:
            stop: Where it asks the run to end, there is no waiting on.

        Returns:
            `run_id`, `experiment_id` and `ui`; None where tracking is offline, has ended, or `stop` came first.

        Raises:
            TrackingError: MLflow can't be reached, or refuses.
        """
        if self._process is None or self._address is not None or self._report is not None:
            return self._address
        answer: dict[str, Any] = {}
        while not answer and not self._is_late():
            if stop is not None and stop.requested:
                return None
            line = self._next_line(min(self._deadline - time.monotonic(), POLL_SECONDS))
            if line is not None:
                answer = json.loads(line) if line else self._silent()
            if "step" in answer:
                self._deadline = min(time.monotonic() + self._seconds_after(answer), self._latest)
                answer, self._start = {}, None
        answer = answer or self._silent()
        if "error" in answer:
            self._process.kill()
            self._process.wait()
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
        """Records metrics that no callback sees, such as the held-out evaluation's (event `heldout`)."""
        self.callback.log(step, metrics, event)

    def log_artifact(self, name: str, content: str | bytes) -> Path:
        """Writes a file that goes to MLflow as the artifact `name` (with folders, if it has slashes)."""
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
        """Ends tracking: says how the run ended, and waits for what is left to be sent.

        Args:
            status: How it ended.
            stop_reason: Why.
            error: What went wrong, one line.
            wait: Seconds to wait, fewer after a signal; what is sent later is not in the report.

        Returns:
            What is in MLflow, and what is not. A second call returns the same.
        """
        if self._report is not None:
            return self._report
        self.callback.close()
        try:
            require_not_taken_over(self.run_dir)
        except RunTakenOver as taken:  # how it ends is another process's to say
            self._report = self._unreported(str(taken))
            return self._report
        json_files.write_status(self.run_dir, status, stop_reason, error)
        self._report = self._last_report(wait)
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
        else:  # KeyboardInterrupt and its like
            report = self.finish("KILLED", error=type(error).__name__)
        if report.message:
            logger.warning(report.message)

    def _spawn(self, tracking_uri: str) -> subprocess.Popen[str]:
        root = str(Path(rl_training.__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with (self.run_dir / run_layout.SHIPPER_LOG).open("a") as log:
            command = subprocess.Popen(
                [sys.executable, "-P", "-m", "rl_training.tracking.shipping.shipper", str(self.run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, URI_VARIABLE: tracking_uri, "PYTHONPATH": path},
                start_new_session=True,  # a signal to training's process group is not for the shipper
            )
            process = kill_on_close(self._opened, command)
        self._start = StartWatch(process.pid)
        threading.Thread(target=self._read_lines, args=(process,), daemon=True).start()
        return process

    def _is_late(self) -> bool:
        """Whether the shipper hangs while it starts, or MLflow has not answered in time."""
        return time.monotonic() >= self._deadline or (self._start is not None and self._start.hangs())

    def _seconds_after(self, step: Mapping[str, Any]) -> float:
        """Returns how long what follows a step of the shipper may take."""
        if step != LOADED:
            return SLOW_SERVER_SECONDS
        return SERVER_SECONDS if is_server(self._uri or "") else DATABASE_SECONDS

    def _read_lines(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)
        with suppress(subprocess.TimeoutExpired):  # it closes its output a moment before it has ended
            process.wait(END_SECONDS)
        self._lines.put("")

    def _next_line(self, seconds: float) -> str | None:
        """Returns the shipper's next line; "" where it is gone, None where it says nothing in time."""
        try:
            return self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def _silent(self) -> dict[str, Any]:
        return {"error": self._why_silent(), "server": True}

    def _why_silent(self) -> str:
        assert self._process is not None
        if self._process.poll() is None:
            return "no answer in time"
        lines = (self.run_dir / run_layout.SHIPPER_LOG).read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it left no word")
        return f"its process ended with exit code {self._process.returncode}: {last.strip()}"

    def _last_report(self, wait: float) -> ShipReport:
        sync = f"{program('rl-training')} sync {shlex.quote(str(self.run_dir))}"
        later = f"`{sync}` sends the rest"
        if self._process is None:
            return self._unreported(f"offline: `{sync}` sends the run to MLflow")
        deadline = time.monotonic() + min(wait, self._stop.seconds_left())
        self._deadline = self._latest = min(self._deadline, deadline)
        assert self._process.stdin is not None
        self._process.stdin.close()  # the shipper takes this for the end
        try:
            self.ready()
        except TrackingError as error:
            return self._unreported(f"{str(error).splitlines()[0]}; {later}")
        line = self._next_line(deadline - time.monotonic())
        if not line:
            return self._unreported(f"{self._why_silent()}; {later}")
        with suppress(subprocess.TimeoutExpired):  # it has said its last word, and leaves
            self._process.wait(max(0.0, deadline - time.monotonic()))
        said = json.loads(line)
        report = ShipReport(**said["report"])
        if not (report.unsent or report.message) or said["elsewhere"]:
            return report
        if said["deleted"]:
            later = f"`{sync} --new-run` sends everything to a new run"
        return replace(report, message="; ".join(filter(None, [report.message, later])))

    def _unreported(self, message: str) -> ShipReport:
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
    """Starts tracking of a run whose directory has been made, or that goes on in it.

    Args:
        run_dir: The run's directory.
        config: The resolved settings.
        tracking_uri: MLflow's store; by default `$MLFLOW_TRACKING_URI`, else the embedded one.
        offline: Write files alone; `sync` sends them later.
        tags: Words to words, put on the MLflow run beside those of the settings.
        from_step: Where training begins.
        wait: Whether to wait until the run is there in MLflow. Without, the shipper's start of some seconds overlaps
            with what the caller does next, who then calls `ready()` before training begins.
        stop: Where it asks the run to end, there is no waiting for MLflow before training, and after a signal a
            bounded one at the end.

    Raises:
        TrackingError: MLflow can't be reached, or refuses; for a server within 30 s, and later on a busy machine.
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
            if not (run_dir / run_layout.CHECKPOINTS).exists():  # never trained: nothing to send later
                for name in (run_layout.TRACKING, run_layout.SHIPPER_LOG, run_layout.SHIPPER_LOCK):
                    (run_dir / name).unlink(missing_ok=True)
            raise
    (run_dir / run_layout.STATUS).unlink(missing_ok=True)  # no earlier: a run that can't go on has ended as it had
    return session
