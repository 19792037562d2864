"""Environments stepped together, where those whose episode ended are reset by mask.

They are divided into shares, each stepped by a process of its own, the first by this one; the shares have no effect on
what comes out. Leaner than Gymnasium's vector environments where an environment's own step is quick: results are
written to rows of memory that the processes share, and infos, which nothing here reads and which can't always be
batched, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.contract_guard import RaisedByEnvironment, fault_text, secrets_of
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.vector.env_group import EnvShare
from rl_training.envs.vector.step_rows import StepRows, shared_file
from rl_training.envs.vector.worker import BEGIN, CLOSE_SECONDS, STEP, Reply
from rl_training.envs.vector.worker_process import WorkerProcess
from rl_training.errors import CheckpointError, EnvironmentFault, EnvironmentRefused
from rl_training.security.secrets import handed_down_secrets, hide

_FIELDS = ("algo", "env_id", "env_kwargs", "wrappers", "max_episode_steps", "total_timesteps")


class MaskedVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment, autoreset DISABLED, of single environments as `make_env` makes them.

    Args:
        config: The settings, as for `make_env`.
        shares: Which environments each process steps, in their order: this process the first share, and a worker
            process each of the others.
        make: Makes the environment of an index, for this process's own share.
        answer_seconds: How long a worker may take to each answer; an `EnvironmentFault` says that one did not come.
            None waits for ever, as training does: a step takes what it takes.

    Raises:
        EnvironmentRefused: One can't be made, or has spaces without an array form, or they differ in their spaces.
    """

    life_steps = 0
    """Steps since the run began: of each environment as many, since they step together."""

    def __init__(
        self,
        config: TrainConfig,
        shares: Sequence[range],
        make: Callable[[int], EpisodeReplay],
        *,
        answer_seconds: float | None = None,
    ) -> None:
        own, *others = shares
        self.num_envs = config.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._env_id, self._secrets = config.env_id, secrets_of(config)
        self._answer_seconds = answer_seconds
        self._own_indices, self._own = own, EnvShare(config.env_id, self._secrets)
        self._workers: list[WorkerProcess] = []
        try:
            with shared_file() if others else nullcontext(-1) as memory:
                for indices in others:
                    # Where this process has no share, there may be more workers than CPUs: waiting leaves them free.
                    self._workers.append(WorkerProcess(indices, memory, spins=len(own) > 0))
                pairs = self._make_all(config, make)
                self._take_spaces(pairs)
                self._rows = self._own.rows = StepRows(*pairs[0], self.num_envs, memory)
                for worker in self._workers:
                    worker.ask(self.num_envs)
        except BaseException:
            self.close()
            raise

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those where `options["reset_mask"]` (bool [N]) is true.

        Args:
            seed: One a environment; a number stands for itself and those after it.
            options: Handed to the environments, but for `reset_mask`.

        Returns:
            The observations of all environments, those that were not reset as they were, and no infos.
        """
        rest = dict(options) if options is not None else None
        mask = rest.pop("reset_mask", None) if rest is not None else None
        if mask is not None and seed is None and not rest:  # where episodes ended, the usual case
            ended = self._rows.ended
            ended[:] = mask
            asked = [worker for worker in self._workers if np.count_nonzero(ended[worker.rows])]
            self._do(BEGIN, asked, self._own.begin_episodes)
        else:
            rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
            self._ask("reset", {i: (_seed_of(i, seed), rest) for i in rows})
        return self._rows.observations(), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps all environments once; the arrays are new ones each time, and there are no infos."""
        self.life_steps += 1
        if self._workers:
            self._rows.action[:] = actions
        self._do(STEP, self._workers, self._own.step, actions[: len(self._own_indices)])
        rows = self._rows
        return rows.observations(), rows.reward.copy(), rows.terminated.copy(), rows.truncated.copy(), {}

    def snapshots(self) -> list[dict[str, Any]]:
        """Returns what `restore` needs; see `EpisodeReplay.snapshot`."""
        return list(self.call("snapshot"))

    def restore(self, snapshots: Sequence[Mapping[str, Any]]) -> tuple[Any, list[int]]:
        """Plays each running episode again; see `EpisodeReplay.restore`.

        Returns:
            The observations, and the indices of the environments that could only begin a fresh episode.

        Raises:
            CheckpointError: The snapshots are of another number of environments.
        """
        require_count(len(snapshots), self.num_envs)
        exact = self._ask("restore", {i: (snapshot,) for i, snapshot in enumerate(snapshots)})
        self.life_steps = int(snapshots[0]["life_steps"])
        return self._rows.observations(), [i for i, same in enumerate(exact) if not same]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment, or reads an attribute."""
        return tuple(self._ask("call", dict.fromkeys(range(self.num_envs), (name, args, kwargs))))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment: one value for all, or a list or tuple of one each."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        self._ask("set_attr", {i: (name, value) for i, value in enumerate(each)})

    def close_extras(self, **kwargs: Any) -> None:
        """Hangs up, closes the environments of this process, and kills the workers that are late with theirs."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + CLOSE_SECONDS + 1.0
        self._own.close()
        for worker in self._workers:
            worker.end(deadline)

    def _make_all(self, config: TrainConfig, make: Callable[[int], EpisodeReplay]) -> list[tuple[Any, Any]]:
        """Has each process make its environments, at the same time; returns the spaces of each environment."""
        fields = config.model_dump(include=set(_FIELDS))
        secrets = handed_down_secrets(fields) if self._workers else {}
        for worker in self._workers:
            worker.ask((fields, worker.indices, secrets))
        self._own.make(self._own_indices, make)
        return self._own.spaces + self._values(self._awaited([(worker, worker.indices) for worker in self._workers]))

    def _take_spaces(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        _require_same_spaces(self._env_id, pairs)
        self.single_observation_space, self.single_action_space = pairs[0]
        ObservationEncoder(self.single_observation_space)  # which refuse a space that has no array form
        ActionCodec(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _do(self, bell: bytes, workers: Sequence[WorkerProcess], own: Callable[..., None], *arguments: Any) -> None:
        """Has workers do what `bell` asks for, and this process its own part meanwhile."""
        for worker in workers:
            worker.ring(bell)
        try:
            own(*arguments)
        finally:
            replies = self._awaited([(worker, worker.indices) for worker in workers])
        self._values(replies)

    def _ask(self, command: str, calls: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Has `EnvShare`'s method `command` called for environments, each with arguments of its own.

        Args:
            command: The method's name.
            calls: By index, in their order.

        Returns:
            What came of each.
        """
        asked = [(worker, [i for i in worker.indices if i in calls]) for worker in self._workers]
        asked = [(worker, indices) for worker, indices in asked if indices]
        for worker, indices in asked:
            worker.ask((command, [(i, *calls[i]) for i in indices]))
        try:
            method = getattr(self._own, command)
            values = [method(i, *arguments) for i, arguments in calls.items() if i in self._own_indices]
        finally:
            replies = self._awaited(asked)
        return values + self._values(replies)

    def _awaited(self, asked: Iterable[tuple[WorkerProcess, Sequence[int]]]) -> list[tuple[int, Reply]]:
        """Returns what workers reply for environments, each with its index; nothing of what went well after a bell.

        All are awaited, whatever goes wrong: an answer that is left in a pipe would be taken for a later request's.
        """
        replies: list[tuple[int, Reply]] = []
        for worker, indices in asked:
            replies += zip(indices, worker.replies(self._answer_seconds), strict=False)
        return replies

    def _values(self, replies: Sequence[tuple[int, Reply]]) -> list[Any]:
        """Returns what was answered, or raises the first error."""
        for i, (kind, value) in replies:
            if kind == "refused":
                raise EnvironmentRefused(f"{value} (in the worker process of environment {i})")
            if kind != "ok":
                text, frames = hide(value[0], self._secrets), hide(value[1] or "", self._secrets)
                if kind != "fault":
                    text = fault_text(self._env_id, i, self.life_steps, text)
                raise EnvironmentFault(text) from (RaisedByEnvironment(f"\n{frames.rstrip()}") if frames else None)
        return [value for _, (_, value) in replies]


def require_count(found: int, num_envs: int) -> None:
    """Checks the number of environments of a checkpoint.

    Raises:
        CheckpointError: The settings have another.
    """
    if found != num_envs:
        raise CheckpointError(f"the checkpoint has {found} environments; the settings have {num_envs}")


def _seed_of(index: int, seed: int | list[int | None] | None) -> int | None:
    if isinstance(seed, list):
        return seed[index]
    return None if seed is None else seed + index


def _require_same_spaces(env_id: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    for index, pair in enumerate(pairs):
        for name, first, other in zip(("observation_space", "action_space"), pairs[0], pair, strict=True):
            if other != first:
                raise EnvironmentRefused(
                    f"environment {env_id!r}: {name} is {first} at index 0 and {other} at index {index}; "
                    f"they must be equal"
                )
