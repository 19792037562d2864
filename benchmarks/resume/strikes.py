"""Strikes a training process with a signal or a closed pipe, and determines what the process was doing at that time.

A strike in training comes at a random delay after the run has recorded a random step, so strikes are spread over the
complete run, however fast it is. Other strikes come at the start-up of a process, before the first checkpoint, and at
the end. The stack of the process shows what it was doing: a `sitecustomize` module registers Python's faulthandler for
SIGUSR1, which writes the stack from the signal handler.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psutil

from benchmarks.harness import ROOT
from rl_training.run_layout import STAGING

Place = Literal["start-up", "before the first checkpoint", "training", "end"]

KILL, TERM, HANGUP = "SIGKILL", "SIGTERM", "SIGHUP"
CLOSED_PIPE = "closed pipe"
"""The reader of stdout and stderr ends, and the process continues to train."""
KINDS = (KILL, TERM, HANGUP, CLOSED_PIPE)
START_UP_SECONDS = 3.0
"""Longest time from the start of a process to a strike in its start-up."""
DELAY_SECONDS = 0.4
"""Longest time from the awaited step to a strike in training or at the end."""
POLL_SECONDS = 0.005
GIVE_UP_SECONDS = 1_800.0
"""A process that has not reached the time of its strike after this many seconds has a fault."""
WORKERS_GONE_SECONDS = 5.0
"""Longest time that child processes may outlive a process."""

SITECUSTOMIZE = """\
import faulthandler, os, signal
file = open(os.path.join(os.environ["SOAK_STACKS"], str(os.getpid())), "w")
faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
file.write("ready\\n")
file.flush()
"""

PHASES = {
    "saving": {"write_checkpoint", "save_training_checkpoint", "_save"},
    "held-out evaluation": {"evaluate_final_policy"},
    "evaluation": {"_evaluate"},
    "update": {"_update"},
    "collection": {"_collect"},
    "restoring": {"restore", "find_checkpoint"},
    "imports": {"_find_and_load"},
    "checking the environment": {"check_environment"},
    "making the trainer": {"make_trainer"},
    "the end": {"summarize", "finish"},
}
"""The activity of a process, by the functions on its stack; the first match counts."""


@dataclass(frozen=True)
class Strike:
    """One strike and its time."""

    kind: str
    place: Place
    step: int
    """For a strike in training: the step that the run must have recorded."""
    delay: float
    """Seconds from the start of the process, or from the awaited step."""


def draw_strikes(total_timesteps: int, counts: Mapping[str, int], seed: int) -> list[Strike]:
    """Draws the strikes of one run, in their order.

    Args:
        total_timesteps: Steps of the run.
        counts: Number of strikes of each kind.
        seed: The same seed draws the same strikes.

    Returns:
        The strikes. If there are at least eight, the first comes before the first checkpoint, the last at the end of
        the run, and an eighth at the start-up of a process, at random positions among the others.
    """
    rng = np.random.default_rng(seed)
    kinds = [str(kind) for kind in rng.permutation([kind for kind in KINDS for _ in range(counts[kind])])]
    count = len(kinds)
    places: list[Place] = ["training"] * count
    if count >= 8:
        for i in rng.choice(np.arange(1, count - 1), count // 8, replace=False):
            places[i] = "start-up"
        places[0], places[-1] = "before the first checkpoint", "end"
    steps = total_timesteps * (np.arange(count) + rng.random(count)) / count
    longest = [START_UP_SECONDS if place == "start-up" else DELAY_SECONDS for place in places]
    delays = rng.random(count) * longest
    return [
        Strike(kind, place, total_timesteps if place == "end" else int(step), float(delay))
        for kind, place, step, delay in zip(kinds, places, steps, delays, strict=True)
    ]


def read_newest_step(run_dir: Path) -> int:
    """Returns the step of the newest complete line of a run's `metrics.jsonl`, or 0 if there is none."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        lines = file.read().split(b"\n")[:-1]  # the text after the last newline is still being written
    for line in reversed(lines):
        if line.startswith(b"{"):
            return int(json.loads(line)["step"])
    return 0


class Process:
    """A process of `rl-training` that can be observed, struck and awaited.

    Args:
        command: The complete command line.
        run_dir: The directory of the run that the process trains.
        home: A folder for the output and the stack of the process.
        environment: The environment variables of the process.
    """

    def __init__(self, command: list[str], run_dir: Path, home: Path, environment: dict[str, str]) -> None:
        self.run_dir = run_dir
        self.found_step = read_newest_step(run_dir)
        """The newest recorded step when the process began."""
        self._stacks, site = home / "stacks", home / "site"
        for directory in (self._stacks, site):
            directory.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        path = os.pathsep.join([str(site), *filter(None, [environment.get("PYTHONPATH")])])
        more = {"PYTHONPATH": path, "SOAK_STACKS": str(self._stacks), "SOAK_MARK": self._mark}
        self._log = home / "output.txt"
        self._log.write_bytes(b"")
        self._process = subprocess.Popen(
            command,
            env={**environment, **more},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader_quits = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def output(self) -> str:
        """Returns the output of the process so far, as long as it had a reader."""
        if self.exit_code is not None:
            self._reader.join()
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close_pipe(self) -> None:
        """Ends the reader of the output."""
        self._reader_quits.set()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe, self._log.open("ab", buffering=0) as log:
            while not self._reader_quits.is_set():
                if select.select([pipe], [], [], POLL_SECONDS)[0]:
                    if not (text := os.read(pipe.fileno(), 65_536)):
                        return
                    log.write(text)

    def is_training(self) -> bool:
        """Tells whether the process trains: it prints the run directory right before, if the output has a reader."""
        return "run directory: " in self.output() or read_newest_step(self.run_dir) > self.found_step

    def wait_for(self, strike: Strike) -> bool:
        """Waits for the time of a strike; returns whether the process still runs then."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while self.exit_code is None and not self._has_reached(strike):
            if time.monotonic() > give_up:
                self.kill()
                return False
            time.sleep(POLL_SECONDS)
        end = time.monotonic() + strike.delay
        while self.exit_code is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        return self.exit_code is None

    def _has_reached(self, strike: Strike) -> bool:
        if strike.place == "start-up":
            return True
        if strike.place == "before the first checkpoint":
            return (self.run_dir / "config.yaml").exists()
        return read_newest_step(self.run_dir) >= strike.step and self.is_training()

    def find_phase(self) -> str:
        """Returns the current activity of the process, as named in `PHASES`."""
        path = self._stacks / str(self._process.pid)
        before = path.stat().st_size if path.exists() else 0
        if before == 0:
            return "imports"  # the interpreter is still starting
        self._process.send_signal(signal.SIGUSR1)
        size = before
        for _ in range(100):
            time.sleep(0.002)
            size, last = path.stat().st_size, size
            if size == last > before:
                break
        functions = set(re.findall(r'^  File ".*", line \d+ in (\S+)', path.read_text()[before:], re.MULTILINE))
        if any(self.run_dir.glob(f"*/{STAGING}*")):
            return "saving"
        return next((phase for phase, names in PHASES.items() if names & functions), "elsewhere")

    def strike(self, name: str) -> tuple[float, float]:
        """Sends a signal, and waits for the process to end.

        Returns:
            The time of the signal (in seconds since 1970), and the seconds until the process ended.
        """
        sent, began = time.time(), time.monotonic()
        self._process.send_signal(signal.Signals[name])
        self.wait()
        return sent, time.monotonic() - began

    def wait(self) -> int:
        """Waits for the process to end; returns the exit code."""
        try:
            self._process.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        return self._process.wait()

    def kill(self) -> int:
        """Ends the process if it still runs; returns the exit code."""
        self._process.kill()
        return self._process.wait()

    def end_left_over(self) -> int:
        """Ends the child processes that are still running, and returns their number."""
        give_up = time.monotonic() + WORKERS_GONE_SECONDS
        while (found := self._find_descendants()) and time.monotonic() < give_up:
            time.sleep(0.1)
        for process in found:
            process.kill()
        return len(found)

    def _find_descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SOAK_MARK") == self._mark:
                    found.append(process)
            except psutil.Error:  # ended, or owned by another user
                continue
        return found
