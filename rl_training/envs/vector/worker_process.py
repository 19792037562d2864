"""A process that runs a share of a vector environment's environments, as its parent sees it.

Gymnasium's `AsyncVectorEnv` forks, or re-runs the caller's main module (which under Prefect imports all of Prefect in
each worker); loses the text of an environment that exits; and waits for ever on closing. Here each worker is a plain
program with two pipes: no sibling holds an end of them, closing ours ends the worker, and there is a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rl_training.envs.vector.stderr_tail import StderrTail
from rl_training.envs.vector.worker import CLOSE_SECONDS, DONE, Reply
from rl_training.envs.vector.worker_channel import Channel
from rl_training.security.import_guard import kept_out
from rl_training.system.constructors import closes_on_error, ended_by

_START = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from rl_training.security.import_guard import keep_out
any(map(keep_out, json.loads(sys.argv[3])))
from rl_training.envs.vector.worker import main
main(*json.loads(sys.argv[1]))"""


def _started(descriptors: Sequence[int], spins: bool) -> subprocess.Popen[bytes]:
    arguments = [json.dumps(part) for part in ([*descriptors, spins], [str(path) for path in sys.path], kept_out())]
    return subprocess.Popen(
        [sys.executable, "-c", _START, *arguments],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


class WorkerProcess:
    """Starts a worker; the first message to it says what it makes, see `rl_training.envs.vector.worker`.

    Args:
        indices: Which of the run's environments are its own.
        memory: Descriptor of the file for `StepRows`.
        spins: See `Channel`.
    """

    @closes_on_error
    def __init__(self, indices: range, memory: int, *, spins: bool) -> None:
        self._opened = ExitStack()
        self.indices, self.rows = indices, slice(indices.start, indices.stop)
        theirs = self._opened.enter_context(ExitStack())
        self._channel, *pipes = self._open_channel(theirs, spins)
        self.process = ended_by(self._opened, _started([*pipes, memory], spins))
        theirs.close()
        self._tail = StderrTail(self.process)

    def _open_channel(self, theirs: ExitStack, spins: bool) -> tuple[Channel, int, int]:
        """Returns our end, and the descriptors of the worker's, which `theirs` closes here."""
        requests, asking = os.pipe()
        theirs.callback(os.close, requests)
        try:
            answering, answers = os.pipe()
        except OSError:
            os.close(asking)
            raise
        theirs.callback(os.close, answers)
        channel = Channel(answering, asking, spins=spins)
        self._opened.callback(channel.close)
        return channel, requests, answers

    def ask(self, message: Any) -> None:
        """Sends a request; what it comes to is said by `replies`."""
        try:
            self._channel.send(message)
        except ConnectionError:
            # It is gone; why is said where its answer is awaited.
            return

    def ring(self, bell: bytes) -> None:
        """Asks by a bell for what stands in shared memory."""
        try:
            self._channel.ring(bell)
        except ConnectionError:
            return

    def replies(self, seconds: float | None = None) -> list[Reply]:
        """Returns what the worker answers; nothing where what a bell asked for is done.

        Args:
            seconds: How long the answer may take; None waits for ever.
        """
        try:
            answer = self._channel.receive(seconds)
            return [] if answer == DONE else answer
        except TimeoutError as error:
            return [("gone", (str(error), None))]
        except (EOFError, ConnectionError):
            return [("gone", (self._why_gone(), None))]

    def hang_up(self) -> None:
        """Lets the worker close its environments and end."""
        self._channel.close()

    def end(self, deadline: float) -> None:
        """Waits until the worker has ended, and kills it where that is later than `deadline` (monotonic seconds)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._tail.close()

    def _why_gone(self) -> str:
        try:
            code = self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its worker process hung up without ending"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        tail = self._tail.last_lines()
        return f"its worker process {how}" + (f"; its last words: {tail}" if tail else "")
