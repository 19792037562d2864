"""Starts the processes of a run's sinks beside training, and waits for them at its end."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_training.config.settings import TrainConfig
from rl_training.run_layout import METRICS, SINKS, SINKS_RUN
from rl_training.runs.stopping import StopFlag
from rl_training.security.import_guard import make_command
from rl_training.system.programs import program
from rl_training.tracking.metric_log import cut_damaged
from rl_training.tracking.sinks.progress import count_missing, format_lines, locate, write_run

logger = logging.getLogger(__name__)

END_SECONDS = 15.0
"""How long the end of a run waits until its sinks have everything; after a signal, `StopFlag.seconds_left` at most."""

_PROGRAM = """import sys
from rl_training.tracking.sinks.process import run_process
run_process(*sys.argv[1:])"""


class _Process:
    """The process of one sink; what it reports is logged by a thread."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self.name, self._run_dir = name, run_dir
        with locate(run_dir, name, ".log").open("a") as log:
            self._popen = subprocess.Popen(
                make_command(_PROGRAM, str(run_dir), name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # so that a signal to training's process group does not reach the sink
            )
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    def announce_end(self) -> None:
        """Tells the process that training has ended, by closing its standard input."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits until the process has ended, at most `seconds`, and warns if its sink lacks lines."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, seconds))
            self._thread.join(1.0)
        if missing := count_missing(self._run_dir, self.name):
            logger.warning(
                "sink %s lacks %s of metrics; `%s sync %s` passes them on",
                self.name, format_lines(missing), program("rl-training"), shlex.quote(str(self._run_dir)),
            )  # fmt: skip

    def _report(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            trouble = json.loads(line)["trouble"]
            if trouble:
                logger.warning("sink %s has failed: %s; training continues, and it is tried again", self.name, trouble)
            else:
                logger.info("sink %s works again", self.name)


@contextmanager
def follow_metrics(run_dir: Path, config: TrainConfig, stop: StopFlag) -> Iterator[None]:
    """Passes the metrics that are logged within the block on to the sinks of the settings, in processes of their own.

    Nothing that a sink does makes the block fail; its failures are logged as warnings, and recorded in `sinks/`. At the
    end of the block the sinks have `END_SECONDS` to receive the rest.

    Args:
        run_dir: The run's directory.
        config: The resolved settings.
        stop: After a signal, limits the wait at the end.
    """
    if not config.tracking.sinks and not (run_dir / SINKS / SINKS_RUN).exists():
        yield
        return
    processes = _start(run_dir.absolute(), config)
    try:
        yield
    finally:
        for process in processes:
            process.announce_end()
        deadline = time.monotonic() + min(END_SECONDS, stop.seconds_left())
        for process in processes:
            process.wait(deadline - time.monotonic())


def _start(run_dir: Path, config: TrainConfig) -> list[_Process]:
    try:
        cut_damaged(run_dir / METRICS)  # before a sink reads it
        write_run(run_dir, config)
        return [_Process(run_dir, name) for name in dict.fromkeys(config.tracking.sinks)]
    except OSError as error:
        logger.warning("the sinks %s can't be used: %s; training continues", ", ".join(config.tracking.sinks), error)
        return []
