"""Measures collection alone with `vectorization: ray` on two local nodes of Ray, compared with `sync`.

Sixteen environments, whose step waits 2 ms (a remote simulator) or computes 2 ms, are stepped and reset as training
does, without learning. The two nodes are separate Ray nodes of this machine, on loopback. Where steps wait, each node
declares four CPUs, so there are eight actors of two environments; where they compute, each declares one. `sync` and
`ray` take turns in each round, and the medians over the rounds are reported; both must have given the same rewards.

    python -m benchmarks.speed.ray_envs                    # benchmarks/results/ray-envs.json
    python -m benchmarks.speed.ray_envs --steps 50 --rounds 1 --results ../trial
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from benchmarks.harness import RESULTS, ROOT
from benchmarks.speed.processes import add_to_file
from benchmarks.speed.ray_nodes import start_nodes
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_vector_env
from rl_training.system.ray_cluster import connect_to_ray, leave_ray

NAME = "ray-envs"
NUM_ENVS = 16
STEP_SECONDS = 0.002
CPUS_PER_NODE = {"waits": 4, "computes": 1}
"""The CPUs that each of the two nodes declares, for each kind of step."""


class SlowCartPole(CartPoleEnv):
    """A CartPole whose step takes 2 ms more, waiting or computing.

    Args:
        kind: `waits` or `computes`.
    """

    def __init__(self, kind: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.computes = kind == "computes"

    def step(self, action: Any) -> Any:
        """Steps after the time has passed."""
        if self.computes:
            end = time.thread_time() + STEP_SECONDS
            while time.thread_time() < end:
                pass
        else:
            time.sleep(STEP_SECONDS)
        return super().step(action)


if "SlowCartPole-v0" not in gym.registry:  # this file is both the program and the module that registers the id
    gym.register("SlowCartPole-v0", SlowCartPole, max_episode_steps=500)


def collect(kind: str, vectorization: str, steps: int) -> tuple[float, float]:
    """Returns the environment steps per second, and the sum of the rewards, which shows that the work was the same."""
    config = PPOConfig(
        env_id="benchmarks.speed.ray_envs:SlowCartPole-v0",
        env_kwargs={"kind": kind},
        total_timesteps=1,
        num_envs=NUM_ENVS,
        vectorization=vectorization,  # type: ignore[arg-type]
    )
    actions = np.random.default_rng(0).integers(0, 2, (steps + 10, NUM_ENVS))
    total = 0.0
    with closing(make_vector_env(config)) as envs:
        envs.reset(seed=1)
        for step, action in enumerate(actions):
            if step == 10:  # after that everything is warm
                start = time.perf_counter()
            _, reward, terminated, truncated, _ = envs.step(action)
            total += float(reward.sum())
            done = terminated | truncated
            if done.any():
                envs.reset(options={"reset_mask": done})
        seconds = time.perf_counter() - start
    return NUM_ENVS * steps / seconds, total


def measure(kind: str, steps: int, rounds: int) -> dict[str, Any]:
    """Returns the result of one kind of step."""
    speeds: dict[str, list[float]] = {"sync": [], "ray": []}
    with start_nodes([CPUS_PER_NODE[kind]] * 2) as (address, _):
        os.environ["RAY_ADDRESS"] = address
        ray = connect_to_ray("this benchmark", 1)  # kept over all rounds
        try:
            for i in range(rounds):
                totals = {}
                for vectorization in ("sync", "ray") if i % 2 == 0 else ("ray", "sync"):
                    speed, totals[vectorization] = collect(kind, vectorization, steps)
                    speeds[vectorization].append(speed)
                assert totals["sync"] == totals["ray"]
        finally:
            leave_ray(ray)
            del os.environ["RAY_ADDRESS"]
    result = {name: median(found) for name, found in speeds.items()}
    return {
        "num_envs": NUM_ENVS,
        "actors": min(NUM_ENVS, 2 * CPUS_PER_NODE[kind]),
        "steps": steps,
        "steps_per_second": result,
        "ratio": result["ray"] / result["sync"],
        "runs": speeds,
    }


def main() -> None:
    """Measures and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of all environments in a round")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind (default: 5)")
    kinds = list(CPUS_PER_NODE)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="kinds of steps (default: both)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = parser.parse_args()
    # The actors of the nodes import this file.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for kind in arguments.kinds:
        result = measure(kind, arguments.steps, arguments.rounds)
        print(f"{kind}: {result['actors']} actors, {result['ratio']:.2f} x sync", flush=True)
        add_to_file(NAME, kind, result, arguments.results)


if __name__ == "__main__":
    main()
