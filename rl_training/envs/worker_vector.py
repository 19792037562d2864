"""Environments stepped at the same time, each in a process of its own.

Gymnasium's `AsyncVectorEnv` forks, or re-runs the caller's main module (which under Prefect imports all of Prefect in
each worker); loses the text of an environment that exits; and waits for ever on closing. Here each worker is a plain
program with a socket: no sibling holds an end of it, closing it ends the worker, and there is a deadline.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from rl_training.config.secrets import handed_down_secrets, hide
from rl_training.config.settings import TrainConfig
from rl_training.envs.guard import RaisedByEnvironment, fault_text, secrets_of
from rl_training.envs.stderr_tail import StderrTails
from rl_training.envs.vector import MaskedVectorEnv
from rl_training.envs.worker import CLOSE_SECONDS
from rl_training.errors import EnvironmentFault, EnvironmentRefused

_START = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from rl_training.envs.worker import main
main(int(sys.argv[1]))"""
_FIELDS = ("algo", "env_id", "env_kwargs", "wrappers", "max_episode_steps", "total_timesteps")


class WorkerVectorEnv(MaskedVectorEnv):
    """A vector environment whose environments run in worker processes, at the same time.

    Args:
        config: The settings, as for `make_env`.
        answer_seconds: How long an environment may take to each answer; an `EnvironmentFault` says that one did not
            come. None waits for ever, as training does: a step takes what it takes.

    Raises:
        EnvironmentRefused: An environment can't be made in its process, or they differ in their spaces.
    """

    def __init__(self, config: TrainConfig, *, answer_seconds: float | None = None) -> None:
        self.num_envs = config.num_envs
        self._env_id = config.env_id
        self._secrets = secrets_of(config)
        self._answer_seconds = answer_seconds
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._tails = StderrTails()
        try:
            for _ in range(config.num_envs):
                self._start_worker()
            fields = config.model_dump(include=set(_FIELDS))
            secrets = handed_down_secrets(fields)
            for index in range(config.num_envs):
                self._send(index, (fields, index, secrets))
            super().__init__(config.env_id, self._receive_all(range(config.num_envs)))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment, or reads an attribute."""
        for i in range(self.num_envs):
            self._send(i, ("call", (name, args, kwargs)))
        return tuple(self._receive_all(range(self.num_envs)))

    def call_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Calls the method `name` of each environment with an argument of its own."""
        for i, argument in enumerate(arguments):
            self._send(i, ("call", (name, (argument,), {})))
        return self._receive_all(range(self.num_envs))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment: one value for all, or a list or tuple of one each."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        for i, value in enumerate(each):
            self._send(i, ("set", (name, (value,), {})))
        self._receive_all(range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Hangs up, waits for the environments to close, and kills the processes that are late."""
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + CLOSE_SECONDS + 1.0
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._tails.close()

    def _reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> list[tuple[Any, dict[str, Any]]]:
        for i in rows:
            self._send(i, ("reset", (seeds[i], options)))
        return self._receive_all(rows)

    def _step_rows(self, actions: Any) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
        for i, action in enumerate(actions):
            self._send(i, ("step", action))
        return self._receive_all(range(self.num_envs))

    def _start_worker(self) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        self._connections.append(ours)
        with theirs:
            arguments = [str(theirs.fileno()), json.dumps([str(path) for path in sys.path])]
            process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._processes.append(process)
        self._tails.follow(process)

    def _send(self, index: int, request: tuple[Any, ...]) -> None:
        try:
            self._connections[index].send(request)
        except (BrokenPipeError, ConnectionError):
            # It is gone; why is said where its answer is awaited.
            return

    def _receive_all(self, indices: Sequence[int]) -> list[Any]:
        """Returns the answers, all of them awaited before the first error is raised."""
        replies = [self._receive(i) for i in indices]
        for i, (kind, value) in zip(indices, replies, strict=True):
            if kind == "refused":
                raise EnvironmentRefused(f"{value} (in worker process {i})")
            if kind != "ok":
                text, frames = hide(value[0], self._secrets), hide(value[1] or "", self._secrets)
                if kind != "fault":
                    text = fault_text(self._env_id, i, self.life_steps, text)
                raise EnvironmentFault(text) from (RaisedByEnvironment(f"\n{frames.rstrip()}") if frames else None)
        return [value for _, value in replies]

    def _receive(self, index: int) -> tuple[str, Any]:
        try:
            if self._answer_seconds is not None and not self._connections[index].poll(self._answer_seconds):
                return "gone", (f"gave no answer within {self._answer_seconds:g} s", None)
            kind, value = self._connections[index].recv()
            return kind, value
        except (EOFError, ConnectionError):
            return "gone", (self._why_gone(index), None)

    def _why_gone(self, index: int) -> str:
        process = self._processes[index]
        try:
            code = process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its worker process hung up without ending"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        tail = self._tails.last_lines(process)
        return f"its worker process {how}" + (f"; its last words: {tail}" if tail else "")
