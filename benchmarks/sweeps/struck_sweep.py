"""Runs a sweep as a command, and strikes it at given moments: its driver, a trial, or its connection to the study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.harness import ROOT, make_environment
from benchmarks.sweeps.study_server import StudyServer
from rl_training.sweeps.study.database import STUDY_VARIABLE

Kind = Literal["driver", "trial", "connection"]
POLL_SECONDS = 0.05
GIVE_UP_SECONDS = 3_600.0
"""A sweep that has not ended after this many seconds has a fault."""


@dataclass(frozen=True)
class Strike:
    """A strike at a sweep."""

    kind: Kind
    delay: float
    """Seconds after the strike before, or after the start of the driver that it has killed."""


class StruckSweep:
    """A sweep that is continued after each strike.

    Args:
        file: The sweep's file.
        home: A new home of rl_training.
        server: The server of the study database; None for a file in the home.
        options: More arguments of `rl-training sweep`.
    """

    def __init__(self, file: Path, home: Path, server: StudyServer | None = None, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--json", *options]
        self._server, self._home = server, home
        self._environment = make_environment(home) | ({STUDY_VARIABLE: server.uri} if server is not None else {})
        home.mkdir(parents=True)
        self.struck: list[str] = []
        """What the strikes have hit."""
        self.starts = 0
        """How often a driver was started."""
        self._process = self._start()

    def run(self, strikes: Sequence[Strike]) -> dict[str, Any]:
        """Strikes the sweep until it ends or no strike is left; returns its result.

        Raises:
            RuntimeError: The sweep has failed.
        """
        for strike in strikes:
            time.sleep(strike.delay)
            if self._process.poll() is None:
                self._strike(strike.kind)
        return self._finish()

    @property
    def log(self) -> str:
        """What the drivers have written to standard error."""
        return (self._home / "sweep.log").read_text(errors="replace")

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with (self._home / "sweep.log").open("ab") as log, (self._home / "result.json").open("wb") as out:
            return subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, stdout=out, stderr=log, start_new_session=True
            )

    def _strike(self, kind: Kind) -> None:
        if kind == "driver":
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = self._start()
        elif kind == "trial":
            if not self._kill_trial():
                return
        elif self._server is None or not self._server.cut_connections():
            return
        self.struck.append(kind)

    def _kill_trial(self) -> bool:
        """Kills the process of a trial as soon as there is one; returns whether there was one."""
        while self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children():
                with suppress(psutil.Error):
                    if "rl_training.sweeps.trial_process" in child.cmdline():
                        child.kill()
                        return True
            time.sleep(POLL_SECONDS)
        return False

    def _finish(self) -> dict[str, Any]:
        try:
            code = self._process.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        if code != 0:
            raise RuntimeError(f"the sweep ended with exit code {code}:\n{self.log[-3000:]}")
        result: dict[str, Any] = json.loads((self._home / "result.json").read_text())
        return result


def list_table(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the final table of a sweep: what does not depend on when and where its trials ran."""
    search = [
        {
            "trial": trial["number"],
            "params": trial["params"],
            "state": trial["state"],
            "score": trial["score"],
            "runs": [
                {name: run[name] for name in ("seed", "state", "num_timesteps", "evaluations", "policy_sha256")}
                for run in trial["runs"]
            ],
        }
        for trial in result["trials"]
    ]
    confirmed = [{name: point[name] for name in ("trial", "params", "scores")} for point in result["confirmed"]]
    return [*search, *confirmed]
