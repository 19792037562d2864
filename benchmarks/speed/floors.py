"""Floors: what the machine could do at best, measured beside what training does, in one process.

`collection`, of a PPO task, in environment steps a second:

- `gymnasium`: Gymnasium's vector environment alone, stepped with random actions;
- `stack`: our training environments stepped with the very actions of a training, from the same seeds, and no policy;
- `collection`: that training's collection, and `collection_share`, the stack's time over the collection's, median over
  the rollouts.

`products`, of a SAC task, in milliseconds:

- `numpy_ms`, `torch_ms`: all matrix products of one update in the order in which an update makes them, each with
  operands in memory of their own, as an update has them; `..._hot_ms`: each repeated by itself, from the cache;
- `update_ms`: one update of a training, drawing its batch included; `update_over_products`: that, over the products of
  the quicker library;
- `environment`: steps a second of Gymnasium's own environment with random actions.

    python -m benchmarks.speed.floors sac-pendulum --threads 1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.speed.ours import TRAIN, speed_config
from benchmarks.speed.tasks import SPEED, SpeedTask, Task
from rl_training import Callback, TrainerState
from rl_training.config.ppo import PPOConfig
from rl_training.envs.training_envs import TrainingEnvs

SECONDS = 1.0
"""For which a floor is run at least."""
FIRST, TIMED, STEPS = 4, 4, 20_480
"""Rollouts of a measured collection: how many are not timed, and how many are at least, of how many steps at least."""
UPDATES = 100
"""Newest updates whose median counts."""

Array = npt.NDArray[Any]


class Phases(Callback):
    """Times collections and updates by the events between them."""

    def __init__(self) -> None:
        self.collected: list[float] = []
        self.updated: list[float] = []
        self._began = 0.0

    def on_train_start(self, state: TrainerState) -> None:
        """The first collection begins; it is not timed by who reads this."""
        self._began = time.perf_counter()

    def on_collect_end(self, state: TrainerState) -> None:
        """A collection is over."""
        self._note(self.collected)

    def on_update_end(self, state: TrainerState) -> None:
        """An update is over."""
        self._note(self.updated)

    def _note(self, seconds: list[float]) -> None:
        now = time.perf_counter()
        seconds.append(now - self._began)
        self._began = now


class Recorder(Callback):
    """Keeps the actions of all steps of a training's environments, and the last observation."""

    def __init__(self) -> None:
        self.actions: list[Array] = []
        self.observation: Array = np.zeros(0)
        step, recorder = TrainingEnvs.step, self

        def recorded(envs: TrainingEnvs, actions: Array) -> Any:
            recorder.actions.append(actions.copy())
            result = step(envs, actions)
            recorder.observation = envs.observation
            return result

        self._step = step
        TrainingEnvs.step = recorded  # type: ignore[method-assign, assignment]

    def on_train_start(self, state: TrainerState) -> None:
        """Forgets the steps of the environments' check before training."""
        self.actions.clear()

    def stop(self) -> None:
        """Leaves training environments as they were."""
        TrainingEnvs.step = self._step  # type: ignore[method-assign]


def collection(task: SpeedTask, threads: int) -> dict[str, float]:
    """Returns the speeds of collection and of what it can't be quicker than.

    Raises:
        RuntimeError: The same actions did not lead to the same observations, so that the two are not the same work.
    """
    num_envs, length = task.settings["num_envs"], task.settings["rollout_steps"]
    rollouts = FIRST + max(TIMED, STEPS // (num_envs * length))
    config = speed_config(task, threads, 0, total_timesteps=rollouts * num_envs * length)
    assert isinstance(config, PPOConfig)
    recorder, phases = Recorder(), Phases()
    TRAIN["ppo"](config, [recorder, phases])
    recorder.stop()
    stack = replay(config, recorder)[FIRST:]
    collected, updated, steps = phases.collected[FIRST:], phases.updated[FIRST:], num_envs * length
    return {
        "gymnasium": bare_speed(task),
        "stack": steps / median(stack),
        "collection": steps / median(collected),
        "collection_share": median(alone / whole for alone, whole in zip(stack, collected, strict=True)),
        "update_share": sum(updated) / (sum(collected) + sum(updated)),
    }


def replay(config: PPOConfig, recorder: Recorder) -> list[float]:
    """Steps training environments with recorded actions and no policy; returns the seconds of each rollout."""
    envs, length, seconds = TrainingEnvs(config, gamma=config.gamma), config.rollout_steps, []
    try:
        envs.start()
        for first in range(0, len(recorder.actions), length):
            began = time.perf_counter()
            for actions in recorder.actions[first : first + length]:
                envs.step(actions)
            seconds.append(time.perf_counter() - began)
        if not np.array_equal(envs.observation, recorder.observation):
            raise RuntimeError("the recorded actions led elsewhere; the floor would be of other work")
        return seconds
    finally:
        envs.close()


def bare_speed(task: Task) -> float:
    """Returns environment steps a second of Gymnasium's own environments with random actions."""
    num_envs = task.settings.get("num_envs", 1)
    mode = "vector_entry_point" if task.settings.get("vectorization") == "native" else "sync"
    envs = gym.make_vec(task.env_id, num_envs, vectorization_mode=mode)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(256)]
    seconds = timed(lambda: [envs.step(action) for action in actions])
    envs.close()
    return float(num_envs * len(actions) / seconds)


class Products:
    """The matrix products of one SAC update: the operands of each, and where it is written."""

    def __init__(self, batch: int, observation: int, action: int, hidden: tuple[int, ...]) -> None:
        self.operands: list[tuple[Array, Array, Array]] = []
        self._rng, self._batch = np.random.default_rng(0), batch
        sizes_actor = (observation, *hidden, 2 * action)
        sizes_critic = (observation + action, *hidden, 1)
        actor, critics, targets = self._net(sizes_actor), *([self._net(sizes_critic) for _ in "12"] for _ in "12")
        self._forward(actor)  # the next actions
        for target in targets:
            self._forward(target)
        for critic in critics:
            self._backward(critic, self._forward(critic), weights=True, inputs=False)
        activations = self._forward(actor)
        for critic in critics:
            self._backward(critic, self._forward(critic), weights=False, inputs=True)
        self._backward(actor, activations, weights=True, inputs=False)

    def _net(self, sizes: tuple[int, ...]) -> list[Array]:
        return [self._array(*pair) for pair in pairwise(sizes)]

    def _array(self, *shape: int) -> Array:
        return self._rng.standard_normal(shape, np.float32)

    def _product(self, left: Array, right: Array) -> Array:
        result = np.empty((left.shape[0], right.shape[1]), np.float32)
        self.operands.append((left, right, result))
        return result

    def _forward(self, net: list[Array]) -> list[Array]:
        activations = [self._array(self._batch, net[0].shape[0])]
        for weights in net:
            activations.append(self._product(activations[-1], weights))
        return activations

    def _backward(self, net: list[Array], activations: list[Array], *, weights: bool, inputs: bool) -> None:
        gradient = self._array(*activations[-1].shape)
        for i in reversed(range(len(net))):
            if weights:
                self._product(activations[i].T, gradient)
            if i > 0 or inputs:
                gradient = self._product(gradient, net[i].T)


def products(task: SpeedTask, threads: int) -> dict[str, float]:
    """Returns the times of an update's matrix products, and of an update."""
    torch.set_num_threads(threads)
    observation, action = 3, 1
    operands = Products(task.settings["batch_size"], observation, action, task.settings["network"]["hidden"]).operands
    tensors = [tuple(torch.from_numpy(array) for array in arrays) for arrays in operands]
    result = {"products": float(len(operands)), "environment": bare_speed(task)}
    for name, multiply, work in (("numpy", np.matmul, operands), ("torch", torch.mm, tensors)):
        result[f"{name}_ms"] = 1e3 * timed(partial(multiply_all, multiply, work))
        result[f"{name}_hot_ms"] = 1e3 * sum(timed(partial(multiply_all, multiply, [one]), 0.03) for one in work)
    phases = Phases()
    TRAIN["sac"](speed_config(task, threads, 0), [phases])
    result["update_ms"] = 1e3 * median(phases.updated[-UPDATES:])
    result["update_over_products"] = result["update_ms"] / min(result["numpy_ms"], result["torch_ms"])
    return result


def multiply_all(multiply: Callable[..., Any], operands: Sequence[Sequence[Any]]) -> None:
    """Makes products (left, right, where it is written) one after the other."""
    for left, right, result in operands:
        multiply(left, right, out=result)


def timed(work: Callable[[], object], seconds: float = SECONDS) -> float:
    """Returns the median seconds of a call, over calls for so many seconds after a first one."""
    work()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        work()
        taken.append(time.perf_counter() - before)
    return median(taken)


FLOORS: dict[str, Callable[[SpeedTask, int], dict[str, float]]] = {"collection": collection, "products": products}


def main() -> None:
    tasks = {task.name: task for task in SPEED if task.floor is not None}
    parser = argparse.ArgumentParser(description="Measure what the machine could do at best on a task.")
    parser.add_argument("task", choices=list(tasks), help="a task of speed_tasks.py")
    parser.add_argument("--threads", type=int, default=1, help="of the libraries that compute (default: %(default)s)")
    arguments = parser.parse_args()
    task = tasks[arguments.task]
    assert task.floor is not None
    print(
        json.dumps({"floor": task.floor, "threads": arguments.threads, **FLOORS[task.floor](task, arguments.threads)})
    )


if __name__ == "__main__":
    main()
