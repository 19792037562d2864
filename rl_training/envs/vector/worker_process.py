"""The parent's side of a worker process, which runs a group of environments.

Gymnasium's `AsyncVectorEnv` forks, or runs the caller's main module again (which under Prefect imports all of Prefect
in each worker). It also loses the error text of an environment that exits, and waits forever when it closes. Here,
each worker is a plain program with two pipes: no other worker holds an end of these pipes, so closing the parent's end
ends the worker, and a deadline bounds the wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rl_training.envs.vector.answers import Reply
from rl_training.envs.vector.stderr_tail import StderrTail
from rl_training.envs.vector.step_rows import StepRows
from rl_training.envs.vector.worker_channel import CLOSE_SECONDS, DONE, Channel
from rl_training.security.import_guard import make_command
from rl_training.system.constructor_cleanup import close_on_error, kill_on_close

# The handler ignores signals from the very start: a cancel signals the entire process group, and the parent ends its
# workers by itself. SIG_IGN would be inherited by programs that the environment starts, which could then not be ended.
_PROGRAM = """import json, sys
from rl_training.system.signal_handlers import handle_stop_signals
with handle_stop_signals(lambda signum, frame: None):
    from rl_training.envs.vector.worker import main
    main(*json.loads(sys.argv[1]))"""


class WorkerProcess:
    """Starts a worker; the first message describes its environments, see `rl_training.envs.vector.worker`.

    Args:
        indices: Indices of the worker's environments within the run.
        memory: Descriptor of the file for `StepRows`.
        spins: See `Channel`.
    """

    lost_episodes: Collection[int] = ()
    """None, because the run ends with the worker."""

    @close_on_error
    def __init__(self, indices: range, memory: int, *, spins: bool) -> None:
        self._opened = ExitStack()
        self.indices, self.rows = indices, slice(indices.start, indices.stop)
        worker_ends = self._opened.enter_context(ExitStack())
        self._channel, *pipes = self._open_channel(worker_ends, spins)
        self.process = kill_on_close(self._opened, _start([*pipes, memory], spins))
        worker_ends.close()
        self._tail = StderrTail(self.process)

    def _open_channel(self, worker_ends: ExitStack, spins: bool) -> tuple[Channel, int, int]:
        """Returns the parent's end, and the descriptors of the worker's end, which `worker_ends` closes here."""
        requests, asking = os.pipe()
        worker_ends.callback(os.close, requests)
        try:
            answering, answers = os.pipe()
        except OSError:
            os.close(asking)
            raise
        worker_ends.callback(os.close, answers)
        channel = Channel(answering, asking, spins=spins)
        self._opened.callback(channel.close)
        return channel, requests, answers

    def make(self, fields: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> None:
        """Requests the environments; `replies` returns the spaces of each.

        Args:
            fields: The settings that `make_env` uses.
            secrets: See `collect_secrets`.
        """
        self.ask((fields, self.indices, secrets))

    def share(self, rows: StepRows) -> None:
        """Says where the arguments and results of steps are."""
        self.ask(len(rows.reward))

    def ask(self, message: Any) -> None:
        """Sends a request; `replies` returns the answer."""
        try:
            self._channel.send(message)
        except ConnectionError:
            # The worker is gone; `replies` reports why.
            return

    def ring(self, bell: bytes) -> None:
        """Rings the worker's bell to request an operation whose arguments are in shared memory."""
        try:
            self._channel.ring(bell)
        except ConnectionError:
            return

    def replies(self, seconds: float | None = None) -> list[Reply]:
        """Returns the worker's replies; an empty list if the operation of a bell succeeded.

        Args:
            seconds: Time limit in seconds; None waits forever.
        """
        try:
            answer = self._channel.receive(seconds)
            return [] if answer == DONE else answer
        except TimeoutError as error:
            return [("gone", (str(error), None))]
        except (EOFError, ConnectionError):
            return [("gone", (self._explain_end(), None))]

    def hang_up(self) -> None:
        """Closes the channel; the worker then closes its environments and ends."""
        self._channel.close()

    def end(self, deadline: float) -> None:
        """Waits until the worker has ended, and kills it at `deadline` (monotonic seconds)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._tail.close()

    def _explain_end(self) -> str:
        try:
            code = self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its worker process hung up without ending"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        tail = self._tail.last_lines()
        return f"its worker process {how}" + (f"; its last output: {tail}" if tail else "")


def _start(descriptors: Sequence[int], spins: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        make_command(_PROGRAM, json.dumps([*descriptors, spins])),
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
