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
from copy import deepcopy
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rl_training.config.secrets import handed_down_secrets, hide
from rl_training.config.settings import TrainConfig
from rl_training.envs.guard import RaisedByEnvironment, fault_text, secrets_of
from rl_training.envs.local_vector import require_same_spaces
from rl_training.envs.stderr_tail import StderrTails
from rl_training.envs.worker import CLOSE_SECONDS
from rl_training.errors import EnvironmentFault, EnvironmentRefused

_START = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from rl_training.envs.worker import main
main(int(sys.argv[1]))"""
_FIELDS = ("algo", "env_id", "env_kwargs", "wrappers", "max_episode_steps", "total_timesteps")


class WorkerVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment, autoreset DISABLED, whose environments run in worker processes.

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
        self.life_steps = np.zeros(config.num_envs, np.int64)
        """Steps of each environment since the run began [N]."""
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
            pairs = self._receive_all(range(config.num_envs))
            require_same_spaces(config.env_id, pairs)
        except BaseException:
            self.close()
            raise
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = pairs[0]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: list[Any] = [None] * self.num_envs
        self._batch: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those where `options["reset_mask"]` (bool [N]) is true.

        Args:
            seed: One a environment; a number stands for itself and those after it.
            options: Handed to the environments, but for `reset_mask`.

        Returns:
            The observations of all environments, those that were not reset as they were, and the infos.
        """
        each = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        rest = dict(options) if options is not None else None
        mask = rest.pop("reset_mask", None) if rest is not None else None
        rows = range(self.num_envs) if mask is None else [int(i) for i in np.flatnonzero(mask)]
        for i in rows:
            self._send(i, ("reset", (each[i], rest)))
        infos: dict[str, Any] = {}
        for i, (observation, info) in zip(rows, self._receive_all(rows), strict=True):
            self._observations[i] = observation
            infos = self._add_info(infos, info, i)
        return self._batched(), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps all environments at once."""
        self.life_steps += 1
        for i, action in enumerate(iterate(self.action_space, actions)):
            self._send(i, ("step", action))
        results = self._receive_all(range(self.num_envs))
        infos: dict[str, Any] = {}
        for i, result in enumerate(results):
            self._observations[i] = result[0]
            infos = self._add_info(infos, result[4], i)
        rewards = np.array([result[1] for result in results], np.float64)
        terminated, truncated = (np.array([result[part] for result in results], bool) for part in (2, 3))
        return self._batched(), rewards, terminated, truncated, infos

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

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Reads an attribute of each environment."""
        return self.call(name)

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
                    text = fault_text(self._env_id, i, int(self.life_steps[i]), text)
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

    def _batched(self) -> Any:
        return deepcopy(concatenate(self.single_observation_space, self._observations, self._batch))
