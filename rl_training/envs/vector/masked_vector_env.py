"""A vector environment that resets by mask the environments whose episode ended.

The environments are divided into groups. This process steps the first group, and a worker process steps each of the
others; the division has no effect on the results. The overhead is lower than in Gymnasium's vector environments:
results are in memory that the processes share, and infos, which can't always be batched, come only if asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.contract_guard import RaisedByEnvironment, find_secrets, format_fault
from rl_training.envs.episode_replay import EpisodeReplay
from rl_training.envs.episodes.episode_numbers import NO_NUMBERS, REFUSED, select_given
from rl_training.envs.episodes.sent_infos import SentInfos, copy_plain_info
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.vector.answers import Reply
from rl_training.envs.vector.env_access import require_sendable, spread, to_reset_options
from rl_training.envs.vector.env_group import EnvGroup, require_same_spaces
from rl_training.envs.vector.step_rows import StepRows, open_shared_file
from rl_training.envs.vector.worker_channel import BEGIN, CLOSE_SECONDS, LOOK, STEP
from rl_training.envs.vector.worker_process import WorkerProcess
from rl_training.envs.vector.workers import FIELDS, Worker
from rl_training.errors import CheckpointError, EnvironmentFault, EnvironmentRefused
from rl_training.security.secrets import collect_secrets, hide


class MaskedVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment of environments from `make_env`; its autoreset mode is DISABLED.

    Args:
        config: The settings, as for `make_env`.
        groups: Indices of the environments that each process steps, in order: this process steps the first group,
            which may be empty, and a worker process steps each of the others.
        make_env: Makes the environment of an index, for the group of this process.
        answer_seconds: Time limit for each answer of a worker, in seconds; an `EnvironmentFault` reports a late
            answer. None waits forever, as training does, because a step may take any time.
        start_worker: Starts the worker of a group; by default a process of this machine.

    Raises:
        EnvironmentRefused: An environment can't be made, its spaces have no array form, or the spaces differ.
    """

    collect_infos = False
    """Whether `step` collects infos, which takes time."""
    infos: Sequence[Mapping[str, Any]] = ()
    """The info of each environment's newest step, if they are collected."""
    life_steps = 0
    """Steps of each environment since the run began; the same for all, because they step together."""

    def __init__(
        self,
        config: TrainConfig,
        groups: Sequence[range],
        make_env: Callable[[int], EpisodeReplay],
        *,
        answer_seconds: float | None = None,
        start_worker: Callable[[range], Worker] | None = None,
    ) -> None:
        own, *others = groups
        self.num_envs = config.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._env_id, self._secrets = config.env_id, find_secrets(config)
        self._answer_seconds = answer_seconds
        self._own_indices, self._own = own, EnvGroup(config)
        self._workers: list[Worker] = []
        self._inherits = start_worker is None
        self._sent = SentInfos(config.env_id)
        try:
            with open_shared_file() if others else nullcontext(-1) as memory:
                # If this process steps no environment, there may be more workers than CPUs, so they must not spin.
                start = start_worker or partial(WorkerProcess, memory=memory, spins=len(own) > 0)
                for indices in others:
                    self._workers.append(start(indices))
                pairs = self._make_all(config, make_env)
                self._take_spaces(pairs)
                self._rows = self._own.rows = StepRows(*pairs[0], self.num_envs, len(self._own.numbers.names), memory)
                for worker in self._workers:
                    worker.share(self._rows)
        except BaseException:
            self.close()
            raise

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those where `options["reset_mask"]` (bool [N]) is true.

        Args:
            seed: One seed for each environment; a number is the seed of the first, and the next ones count up from it.
            options: Options for the environments; `reset_mask` is removed from them.

        Returns:
            The observations of all environments, unchanged for those that were not reset, and no infos.
        """
        rest = dict(options) if options is not None else None
        mask = rest.pop("reset_mask", None) if rest is not None else None
        if mask is not None and seed is None and not rest:  # the usual case: episodes ended
            ended = self._rows.ended
            ended[:] = mask
            asked = [worker for worker in self._workers if np.count_nonzero(ended[worker.rows])]
            self._do(BEGIN, asked, self._own.begin_episodes)
        else:
            rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
            self._ask("reset", {i: (_pick_seed(i, seed), rest) for i in rows})
        return self._rows.observations(), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps all environments once; the arrays are new at each step. The infos asked for are in `infos`."""
        self.life_steps += 1
        if self._workers:
            self._rows.action[:] = actions
        own_actions = actions[: len(self._own_indices)]
        if self.collect_infos:
            self.infos = self._step_with_infos(own_actions)
        else:
            self._do(STEP, self._workers, self._own.step, own_actions)
        rows = self._rows
        return rows.observations(), rows.reward.copy(), rows.terminated.copy(), rows.truncated.copy(), {}

    def _step_with_infos(self, own_actions: Any) -> list[dict[str, Any]]:
        own: list[dict[str, Any]] = []
        sent = self._do(LOOK, self._workers, self._own.step, own_actions, own)
        return self._sent.take([*map(copy_plain_info, own), *sent]) if self._workers else own

    def numbers(self, rows: NDArray[np.intp]) -> Sequence[Mapping[str, float]]:
        """Returns the numbers of the episodes that ended in the newest step, by name; see `EpisodeNumbers`.

        Args:
            rows: The indices of the environments whose episode ended.
        """
        reader, found = self._own.numbers, self._rows.numbers[rows]
        if np.count_nonzero(np.isnan(found)) == found.size:  # the usual case, without overhead
            return [NO_NUMBERS] * len(rows)
        each = [dict(zip(reader.names, values, strict=True)) for values in found.tolist()]
        for i, values in zip(rows.tolist(), each, strict=True):
            for name in (name for name, value in values.items() if value == REFUSED):
                reader.warn(name, *self._ask("describe_refused", {i: (name,)}))
        return [select_given(values) for values in each]

    def snapshots(self) -> list[dict[str, Any]]:
        """Returns the state that `restore` takes, one snapshot for each environment; see `EpisodeReplay.snapshot`."""
        return self._ask("snapshot", dict.fromkeys(range(self.num_envs), ()))

    def restore(self, snapshots: Sequence[Mapping[str, Any]]) -> tuple[Any, list[int]]:
        """Plays each running episode again; see `EpisodeReplay.restore`.

        Returns:
            The observations, and the indices of the environments whose replay failed and which began a fresh episode.

        Raises:
            CheckpointError: The number of snapshots differs from the number of environments.
        """
        require_count(len(snapshots), self.num_envs)
        exact = self._ask("restore", {i: (snapshot,) for i, snapshot in enumerate(snapshots)})
        self.life_steps = int(snapshots[0]["life_steps"])
        return self._rows.observations(), [i for i, same in enumerate(exact) if not same]

    @property
    def lost_episodes(self) -> list[int]:
        """The indices of the environments that lost an episode with their worker."""
        return [i for worker in self._workers for i in sorted(worker.lost_episodes)]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of each environment."""
        return tuple(self._ask("get_attr", dict.fromkeys(range(self.num_envs), (name,))))

    def set_attr(self, name: str, values: Any) -> bool:
        """Sets an attribute of each environment, from one value for all or a list or tuple with one value for each.

        Returns:
            Whether a replay can set all of them again; see `AttributeChanges.set`.
        """
        calls = {i: (name, value) for i, value in enumerate(spread(values, self.num_envs))}
        if self._workers:
            require_sendable("set_attr", calls)
        return all(self._ask("set_attr", calls))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment, or reads an attribute."""
        calls = dict.fromkeys(range(self.num_envs), (name, args, kwargs))
        if self._workers:
            require_sendable("call", calls)
        return tuple(self._ask("call", calls))

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Sets the options of every later `reset`, in place of those in use."""
        self._ask("set_reset_options", dict.fromkeys(range(self.num_envs), (to_reset_options(options),)))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the channels and the environments of this process, and kills the workers that take too long to end."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + CLOSE_SECONDS + 1.0
        self._own.close()
        for worker in self._workers:
            worker.end(deadline)

    def _make_all(self, config: TrainConfig, make_env: Callable[[int], EpisodeReplay]) -> list[tuple[Any, Any]]:
        """Makes the environments in all processes at the same time, and returns the spaces of each environment."""
        fields = config.model_dump(include=set(FIELDS))
        secrets = collect_secrets(fields, inherited=self._inherits) if self._workers else {}
        for worker in self._workers:
            worker.make(fields, secrets)
        self._own.make(self._own_indices, make_env)
        return self._own.spaces + self._unpack(
            self._await_replies([(worker, worker.indices) for worker in self._workers])
        )

    def _take_spaces(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        require_same_spaces(self._env_id, pairs)
        self.single_observation_space, self.single_action_space = pairs[0]
        ObservationEncoder(self.single_observation_space)  # refuses a space without an array form
        ActionCodec(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _do(self, bell: bytes, workers: Sequence[Worker], own: Callable[..., None], *arguments: Any) -> list[Any]:
        """Runs the operation of a bell in workers, and meanwhile its counterpart `own` here; returns the replies."""
        for worker in workers:
            worker.ring(bell)
        try:
            own(*arguments)
        finally:
            replies = self._await_replies([(worker, worker.indices) for worker in workers])
        return self._unpack(replies)

    def _ask(self, command: str, calls: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Calls a method of `EnvGroup` for some environments, in the process of each.

        Args:
            command: Name of the method.
            calls: Arguments of each call by the index of its environment, in ascending order.

        Returns:
            The results, in the same order.
        """
        asked = [(worker, [i for i in worker.indices if i in calls]) for worker in self._workers]
        asked = [(worker, indices) for worker, indices in asked if indices]
        for worker, indices in asked:
            worker.ask((command, [(i, *calls[i]) for i in indices]))
        try:
            method = getattr(self._own, command)
            values = [method(i, *arguments) for i, arguments in calls.items() if i in self._own_indices]
        finally:
            replies = self._await_replies(asked)
        return values + self._unpack(replies)

    def _await_replies(self, asked: Iterable[tuple[Worker, Sequence[int]]]) -> list[tuple[int, Reply]]:
        """Returns the workers' replies with the index of each environment; none for a bell's operation that succeeded.

        All replies are awaited even after an error, because a later request would take an unread reply for its own.
        """
        replies: list[tuple[int, Reply]] = []
        for worker, indices in asked:
            replies += zip(indices, worker.replies(self._answer_seconds), strict=False)
        return replies

    def _unpack(self, replies: Sequence[tuple[int, Reply]]) -> list[Any]:
        """Returns the values of successful replies, or raises the first error."""
        for i, (kind, value) in replies:
            if kind == "refused":
                raise EnvironmentRefused(f"{value} (in the worker process of environment {i})")
            if kind != "ok":
                text, frames = hide(value[0], self._secrets), hide(value[1] or "", self._secrets)
                if kind != "fault":
                    text = format_fault(self._env_id, i, self.life_steps, text)
                raise EnvironmentFault(text) from (RaisedByEnvironment(f"\n{frames.rstrip()}") if frames else None)
        return [value for _, (_, value) in replies]


def require_count(found: int, num_envs: int) -> None:
    """Checks that a checkpoint has as many environments as the settings.

    Raises:
        CheckpointError: The numbers differ.
    """
    if found != num_envs:
        raise CheckpointError(f"the checkpoint has {found} environments; the settings have {num_envs}")


def _pick_seed(index: int, seed: int | list[int | None] | None) -> int | None:
    if isinstance(seed, list):
        return seed[index]
    return None if seed is None else seed + index
