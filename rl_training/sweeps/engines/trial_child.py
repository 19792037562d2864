"""Starts the process of a segment, which every engine runs, and reads the record that it writes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import rl_training
from rl_training.errors import one_line
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.plan import RunRecord
from rl_training.sweeps.segments import find_sweep_dir, from_text, to_text
from rl_training.sweeps.trial_process import CPUS_VARIABLE

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables with the number of threads of numeric libraries."""

TAIL_BYTES = 10_000
"""The end of a log in which the last line is looked for."""


class TrialChild:
    """The process that trains a segment; it ends when this process does, however that ends.

    Args:
        segment: The segment.
        cpus: Numbers of the CPUs that the process may use; empty leaves it where this process is.
        gpus: Numbers of the GPUs that the process may use; None leaves those of this process.
    """

    def __init__(self, segment: Segment, cpus: Collection[int] = (), gpus: Collection[str] | None = None) -> None:
        self.segment = segment
        self.log = find_trial_log(segment)
        """The file with the output of the process."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "rl_training.sweeps.trial_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_make_environment(segment, cpus, gpus),
                start_new_session=True,  # so that Ctrl-C reaches the sweep alone, which then stops its trials
            )
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # `wait` reports that the process has ended
            self.popen.stdin.write(to_text(segment).encode() + b"\n")
            self.popen.stdin.flush()  # and stays open, because its end tells the process that the sweep is gone

    def wait(self) -> RunRecord | Lost:
        """Waits until the process has ended; returns the record that it has written."""
        assert self.popen.stdout is not None
        lines = self.popen.stdout.read().splitlines()
        code = self.popen.wait()
        self._close()
        if code == 0 and lines:
            try:
                return from_text(lines[-1], RunRecord)
            except NotReadable as error:
                return Lost(f"its record can't be read: {error}")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = self._read_last_line()
        return Lost(f"its process {how}" + (f": {last}" if last else "") + f" (log: {self.log})")

    def watch(self, on_end: Callable[[TrialChild, RunRecord | Lost], None]) -> None:
        """Calls a function in another thread when the process has ended."""
        threading.Thread(target=lambda: on_end(self, self.wait()), daemon=True).start()

    def stop(self) -> None:
        """Asks the process to save its run and end."""
        self.popen.terminate()

    def kill(self) -> None:
        """Ends the process at once."""
        self.popen.kill()

    def _close(self) -> None:
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()

    def _read_last_line(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(self._begin, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return one_line(lines[-1]) if lines else ""


def find_trial_log(segment: Segment) -> Path:
    """Returns the file on this machine with the output of the processes of a run."""
    return find_sweep_dir(segment.sweep_uid) / f"{segment.key}.log"


def _make_environment(segment: Segment, cpus: Collection[int], gpus: Collection[str] | None) -> dict[str, str]:
    root = str(Path(rl_training.__file__).parents[1])
    modules: Sequence[str] = [root, *filter(None, [os.environ.get("PYTHONPATH"), *sys.path])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules))}
    environment |= dict.fromkeys(THREAD_VARIABLES, str(segment.cpus))
    environment.pop(CPUS_VARIABLE, None)
    if cpus:
        environment[CPUS_VARIABLE] = ",".join(map(str, sorted(cpus)))
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment
