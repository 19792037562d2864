"""Measures floors, which are lower bounds on this machine, and the training's own times, in one process.

`collection`, for a PPO task, in environment steps per second:

- `gymnasium`: Gymnasium's vector environment alone, with random actions;
- `stack`: our training environments without a policy, with the recorded actions of a training from the same seeds;
- `collection`: the collection of that training; `collection_share`: the time of the stack divided by the time of the
  collection, as the median over the rollouts.

`products`, for a SAC or DQN task, in milliseconds:

- `numpy_ms`, `torch_ms`: all matrix products of one update in their order, each with its own operands in memory, as in
  an update; `..._hot_ms`: each product repeated by itself, from the cache;
- `update_ms`: one update of a training, including the sampling of its batch; `update_over_products`: this time divided
  by the time of the products of the faster library;
- `products_share`: the time of the products of the faster library, as a share of the time of a training, which is the
  speed of the training relative to one that computes nothing but these products;
- `environment`: steps per second of Gymnasium's own environment with random actions.

    python -m benchmarks.speed.floors sac-pendulum --threads 1
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.speed.products import Array, call_all, list_products, plan_products, time_calls
from benchmarks.speed.runners.run_ours import make_speed_config
from benchmarks.speed.tasks import SPEED, SpeedTask, Task
from rl_training import Callback, TrainerState, get_algorithm, train_ppo
from rl_training.algorithms.ppo import PPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.training_envs import TrainingEnvs

FIRST, TIMED, STEPS = 4, 4, 20_480
"""Untimed first rollouts of a measured collection, and least number and total steps of its timed rollouts."""


class Phases(Callback):
    """Times collections and updates by the events between them."""

    def __init__(self) -> None:
        self.collected: list[float] = []
        self.updated: list[float] = []
        self._began = 0.0

    def on_train_start(self, state: TrainerState) -> None:
        """Starts the clock at the first collection."""
        self._began = time.perf_counter()

    def on_collect_end(self, state: TrainerState) -> None:
        """Records the duration of a collection."""
        self._record(self.collected)

    def on_update_end(self, state: TrainerState) -> None:
        """Records the duration of an update."""
        self._record(self.updated)

    def _record(self, seconds: list[float]) -> None:
        now = time.perf_counter()
        seconds.append(now - self._began)
        self._began = now


class Recorder(Callback):
    """Records the actions of all rollouts when they are complete, and the last observation."""

    def __init__(self) -> None:
        self.actions: list[Array] = []
        self.observation: Array = np.zeros(0)
        self._update, recorder = PPO.update, self

        def record_rollout(algorithm: PPO, buffer: RolloutBuffer, *arguments: Any) -> dict[str, float]:
            recorder.actions.extend(buffer.actions.copy())
            return recorder._update(algorithm, buffer, *arguments)

        PPO.update = record_rollout  # type: ignore[method-assign]

    def on_update_end(self, state: TrainerState) -> None:
        """Records the observation after the newest rollout."""
        assert isinstance(state.envs, TrainingEnvs)
        self.observation = state.envs.observation

    def stop(self) -> None:
        """Restores the algorithm."""
        PPO.update = self._update  # type: ignore[method-assign]


def measure_collection(task: SpeedTask, threads: int) -> dict[str, float]:
    """Returns the speed of collection, and the speeds that limit it.

    Raises:
        RuntimeError: The same actions led to other observations, so the speeds are not comparable.
    """
    num_envs, length = task.settings["num_envs"], task.settings["rollout_steps"]
    rollouts = FIRST + max(TIMED, STEPS // (num_envs * length))
    config = make_speed_config(task, threads, 0, total_timesteps=rollouts * num_envs * length)
    assert isinstance(config, PPOConfig)
    recorder, phases = Recorder(), Phases()
    train_ppo(config, [recorder, phases])
    recorder.stop()
    stack = replay(config, recorder)[FIRST:]
    collected, updated, steps = phases.collected[FIRST:], phases.updated[FIRST:], num_envs * length
    return {
        "gymnasium": measure_bare_speed(task),
        "stack": steps / median(stack),
        "collection": steps / median(collected),
        "collection_share": median(alone / whole for alone, whole in zip(stack, collected, strict=True)),
        "update_share": sum(updated) / (sum(collected) + sum(updated)),
    }


def replay(config: PPOConfig, recorder: Recorder) -> list[float]:
    """Steps training environments with recorded actions; returns the seconds of each rollout."""
    envs, length, seconds = TrainingEnvs(config, gamma=config.gamma), config.rollout_steps, []
    try:
        envs.start()
        for first in range(0, len(recorder.actions), length):
            began = time.perf_counter()
            for actions in recorder.actions[first : first + length]:
                envs.step(actions)
            seconds.append(time.perf_counter() - began)
        if not np.array_equal(envs.observation, recorder.observation):
            raise RuntimeError("the recorded actions led to other observations, so the speeds are not comparable")
        return seconds
    finally:
        envs.close()


def measure_bare_speed(task: Task) -> float:
    """Returns the steps per second of Gymnasium's own environments with random actions."""
    num_envs = task.settings.get("num_envs", 1)
    native = make_speed_config(task, 1, 0).vectorization == "native"
    mode = "vector_entry_point" if native else "sync"
    envs = gym.make_vec(task.env_id, num_envs, vectorization_mode=mode)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(256)]
    seconds = time_calls(lambda: [envs.step(action) for action in actions])
    envs.close()
    return float(num_envs * len(actions) / seconds)


def measure_products(task: SpeedTask, threads: int) -> dict[str, float]:
    """Returns the times of an update and of its matrix products, and their share of a training."""
    torch.set_num_threads(threads)
    operands = list_products(task)
    tensors = [tuple(torch.from_numpy(array) for array in arrays) for arrays in operands]
    result = {"products": float(len(operands)), "environment": measure_bare_speed(task)}
    for name, multiply, work in (("numpy", np.matmul, operands), ("torch", torch.mm, tensors)):
        calls = plan_products(multiply, work)
        result[f"{name}_ms"] = 1e3 * time_calls(partial(call_all, calls))
        result[f"{name}_hot_ms"] = 1e3 * sum(time_calls(call, 0.03) for call in calls)
    phases, updates = Phases(), task.settings["gradient_steps"]
    get_algorithm(task.algo).train(make_speed_config(task, threads, 0), [phases])
    first = task.warm // task.settings["train_freq"]  # blocks of the warm-up
    blocks = [sum(pair) for pair in zip(phases.collected[first:], phases.updated[first:], strict=True)]
    products_ms = min(result["numpy_ms"], result["torch_ms"])
    result["update_ms"] = 1e3 * median(phases.updated[first:]) / updates
    result["update_over_products"] = result["update_ms"] / products_ms
    result["products_share"] = updates * products_ms / (1e3 * median(blocks))
    return result


def main() -> None:
    tasks = {task.name: task for task in SPEED if task.floor is not None}
    parser = argparse.ArgumentParser(description="Measure the limits of this machine for a task.")
    parser.add_argument("task", choices=list(tasks), help="a task of tasks.py")
    parser.add_argument("--threads", type=int, default=1, help="threads of numeric libraries (default: %(default)s)")
    arguments = parser.parse_args()
    task, threads = tasks[arguments.task], arguments.threads
    measure = measure_collection if task.floor == "collection" else measure_products
    print(json.dumps({"floor": task.floor, "threads": threads, **measure(task, threads)}))


if __name__ == "__main__":
    main()
