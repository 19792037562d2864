"""The trainer's side of a Ray actor, which runs a group of environments on some node of a cluster.

If the actor's process or node dies, its environments are played again on another actor, from the snapshot of each
running episode and the actions since, and the request is repeated, so the results are those of a run without a death.
An environment whose replay ends elsewhere loses its episode, which is cut at its newest observation; that makes the run
inexact.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from rl_training.config.settings import TrainConfig
from rl_training.envs.single_env import make_env
from rl_training.envs.vector.answers import Reply
from rl_training.envs.vector.env_group import divide_equally
from rl_training.envs.vector.masked_vector_env import MaskedVectorEnv
from rl_training.envs.vector.ray_actor import Answer, EnvActor
from rl_training.envs.vector.step_rows import StepRows
from rl_training.envs.vector.worker_channel import BEGIN, LOOK
from rl_training.errors import error_line
from rl_training.security.import_guard import list_excluded
from rl_training.system.ray_cluster import connect_to_ray, leave_ray

logger = logging.getLogger(__name__)

SETTING = "vectorization: ray"
TRIES = 3
"""Actors that are started for a request whose actor died, before the environments count as faulty."""


def make_ray_env(config: TrainConfig, cpus: int) -> MaskedVectorEnv:
    """Makes environments that are stepped by Ray actors: one for each CPU of the cluster, as far as there are enough.

    Args:
        config: The settings.
        cpus: The number of CPUs of the cluster that is started if RAY_ADDRESS names none.

    Raises:
        UserError: Ray is not installed, or the cluster can't be used.
        EnvironmentRefused: As `make_env`.
    """
    ray = connect_to_ray(SETTING, cpus)
    try:
        groups = divide_equally(config.num_envs, len(_list_places(ray)))
        numbers = count()
        return MaskedVectorEnv(
            config,
            [range(0), *groups],
            partial(make_env, config),
            start_worker=lambda indices: RayWorker(config.env_id, cpus, next(numbers), indices),
        )
    finally:
        leave_ray(ray)


def _list_places(ray: Any) -> list[str]:
    """Returns a node for each CPU of the cluster, one CPU of each node before the second of any."""
    nodes = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    most = max(nodes.values(), default=0)
    return [node for k in range(most) for node, cpus in nodes.items() if cpus > k] or list(nodes)


class RayWorker:
    """Starts an actor, and asks it as a `WorkerProcess` is asked.

    Args:
        env_id: The id in the settings, for messages.
        cpus: See `make_ray_env`.
        number: The number of the actor in the run, which chooses its node.
        indices: Indices of the actor's environments within the run.
    """

    def __init__(self, env_id: str, cpus: int, number: int, indices: range) -> None:
        self.indices, self.rows = indices, slice(indices.start, indices.stop)
        self.lost_episodes: Collection[int] = set()
        """Environments whose episode was lost."""
        self._env_id, self._number = env_id, number
        self._recipe: tuple[Any, ...] = ()
        self._request: tuple[str, tuple[Any, ...]] = ("", ())
        self._answer: Any = None
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._actions: dict[int, list[Any]] = {}
        """The actions of each environment since its snapshot."""
        self._cut: set[int] = set()
        """Environments whose next step ends their episode, because it was lost."""
        self._closing: Any = None
        self._ray = connect_to_ray(SETTING, cpus)
        errors = self._ray.exceptions
        self._death = (
            *(errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError),
            *(errors.OutOfMemoryError, errors.ObjectLostError),
        )
        try:
            self._actor = self._start(0)
        except BaseException:
            leave_ray(self._ray)
            raise

    def make(self, fields: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> None:
        """See `WorkerProcess.make`."""
        self._recipe = ((list(map(str, sys.path)), list_excluded()), fields, self.indices, secrets)
        self._send("make", *self._recipe)

    def share(self, rows: StepRows) -> None:
        """Says where the arguments and results of steps are."""
        self._all = rows

    def ask(self, message: tuple[str, Sequence[tuple[Any, ...]]]) -> None:
        """Requests calls of methods of `EnvGroup`; `replies` returns the answers."""
        self._send("answer", *message)

    def ring(self, bell: bytes) -> None:
        """Requests the operation of a bell, with its arguments in the rows."""
        if bell == BEGIN:
            self._send("begin_episodes", self._all.ended[self.rows].copy())
        else:
            self._send("step", self._all.action[self.rows].copy(), bell == LOOK)

    def replies(self, seconds: float | None = None) -> list[Reply]:
        """Returns the actor's replies; an empty list if the operation of a bell succeeded.

        Args:
            seconds: Time limit in seconds; None waits forever.
        """
        try:
            try:
                return self._take(self._get(self._answer, seconds))
            except self._death as error:
                return self._try_again(error, seconds)
        except self._ray.exceptions.GetTimeoutError:
            return [("gone", (f"gave no answer within {seconds:g} s", None))]
        except self._ray.exceptions.RayTaskError as error:
            return [("failed", (error_line(error.cause), None))]

    def hang_up(self) -> None:
        """Asks the actor to close its environments."""
        with suppress(self._ray.exceptions.RayError):
            self._closing = self._actor.close.remote()

    def end(self, deadline: float) -> None:
        """Waits until the environments are closed, up to `deadline` (monotonic seconds), and ends the actor."""
        with suppress(self._ray.exceptions.RayError):
            if self._closing is not None:
                self._ray.wait([self._closing], timeout=max(0.0, deadline - time.monotonic()))
            self._ray.kill(self._actor)
        leave_ray(self._ray)

    def _start(self, tried: int) -> Any:
        """Starts an actor; after a death, on the next node if there is one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        places = _list_places(self._ray)
        place = places[(self._number + tried) % len(places)]
        strategy = NodeAffinitySchedulingStrategy(place, soft=True)
        # Ray places an actor that needs nothing at random; one byte of memory makes it respect the strategy.
        return self._ray.remote(EnvActor).options(num_cpus=0, memory=1, scheduling_strategy=strategy).remote()

    def _send(self, method: str, *arguments: Any) -> None:
        self._request = method, arguments
        self._answer = getattr(self._actor, method).remote(*arguments)

    def _get(self, answer: Any, seconds: float | None) -> Answer:
        return Answer(*self._ray.get(answer, timeout=seconds))

    def _take(self, answer: Answer) -> list[Reply]:
        """Writes the results of the request to the rows, and records what a replay needs."""
        method, arguments = self._request
        if method == "step" and answer.results:
            self._take_step(answer, arguments[0])
        self._snapshots |= answer.snapshots
        self._actions |= {i: [] for i in answer.snapshots}
        if method == "begin_episodes" or (method == "answer" and arguments[0] in ("reset", "restore")):
            for i in answer.snapshots:
                self._cut.discard(i)
                self._all.write_observation(i, answer.results, i - self.indices.start)
        return answer.replies

    def _take_step(self, answer: Answer, actions: Any) -> None:
        before = {i: self._all.copy(slice(i, i + 1)) for i in self._cut}
        self._all.write(self.rows, answer.results)
        for i, action in zip(self.indices, actions, strict=True):
            if i in self._actions:
                self._actions[i].append(action)
        for i, row in before.items():
            self._all.cut(i, row)
            if answer.replies:
                answer.replies[i - self.indices.start] = ("ok", ({}, {}))
        self._cut.clear()

    def _try_again(self, error: Exception, seconds: float | None) -> list[Reply]:
        """Repeats the request on new actors, as often as they die, up to `TRIES`."""
        first, last = self.indices.start, self.indices.stop - 1
        where = f"environment {first}" if first == last else f"environments {first} to {last}"
        for tried in range(1, TRIES + 1):
            logger.warning(
                "environment %s: the Ray actor of %s died (%s); they are played again on another",
                *(self._env_id, where, _explain(error)),
            )
            try:
                self._actor = self._start(tried)
                if refused := self._revive():
                    return refused
                method, arguments = self._request
                self._send(method, *arguments)
                return self._take(self._get(self._answer, seconds))
            except self._death as died:
                error = died
        return [("gone", (f"its Ray actor died {TRIES + 1} times in the same step or call ({_explain(error)})", None))]

    def _revive(self) -> list[Reply]:
        """Makes the environments in the new actor and plays their episodes again; returns replies that are errors."""
        if self._request[0] == "make":
            return []
        made = self._get(self._actor.make.remote(*self._recipe), None)
        if any(kind != "ok" for kind, _ in made.replies) or not self._snapshots:
            return [reply for reply in made.replies if reply[0] != "ok"]
        calls = [(i, self._snapshots[i], np.asarray(self._actions[i])) for i in self._snapshots]
        played = self._get(self._actor.answer.remote("replay", calls), None)
        if not played.results:
            return played.replies
        for i, (_, exact) in zip(self._snapshots, played.replies, strict=True):
            if not (exact and self._all.has_observation(i, played.results, i - self.indices.start)):
                self._lose_episode(i)
        return []

    def _lose_episode(self, index: int) -> None:
        """Begins a fresh episode in the new actor; the next step then cuts the one that is lost."""
        logger.warning(
            "environment %s (index %d): its episode can't be played again, because the environment is not "
            "deterministic; it is cut here, and the run is not exact",
            *(self._env_id, index),
        )
        fresh = self._get(self._actor.answer.remote("reset", [(index, None, None)]), None)
        self._snapshots |= fresh.snapshots
        self._actions[index] = []
        self._cut.add(index)
        self.lost_episodes = {*self.lost_episodes, index}


def _explain(error: Exception) -> str:
    """Returns the part of Ray's message that says how a process ended."""
    text = str(error)
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            return " ".join(text.split(mark, 1)[1].split(" Some common causes include", 1)[0].split())
    return " ".join(text.split())[:300]
