"""Measures PPO on two ranks against one, where environments are slow: each step computes for 200 microseconds.

Each training runs in its own process with one thread a rank. Trainings of one and of two ranks alternate, and the ratio
is that of the medians. A speed is that of complete iterations (collection and update), the median over the iterations
after the first ones. Two ranks need two idle cores: `other_cpus` of each run says what else the machine did.

    python -m benchmarks.speed.two_ranks                        # benchmarks/results/two-ranks.json
    python -m benchmarks.speed.two_ranks --rounds 1 --iterations 4 --results /tmp
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import RESULTS, collect_provenance, write_json
from benchmarks.speed.floors import Phases
from benchmarks.speed.processes import run_recorded
from benchmarks.speed.runners.run_ours import ALONE
from rl_training import train_ppo
from rl_training.experiment.loading import config_from_mapping

NAME = "two-ranks"
ENV_ID = "benchmarks.speed.two_ranks:Busy-v0"
MICROSECONDS = 200
"""What a step of the environment computes for."""
FIRST = 2
"""Iterations of the warm-up."""
AIM = 1.6
"""The speed of two ranks in multiples of that of one."""
SETTINGS: dict[str, Any] = {
    "algo": "ppo",
    "env_id": ENV_ID,
    "num_envs": 16,
    "rollout_steps": 256,
    "batch_size": 512,
    "epochs": 4,
    **ALONE,
}


class Busy(gym.Env[NDArray[np.float32], int]):
    """Computes for some time in each step; the reward is 1 for the action that the observation names."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,))
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Computes until it has used the CPU time of a step."""
        end = time.thread_time() + 1e-6 * MICROSECONDS
        reward = float(action == (self._observation[0] > 0))
        observation = self._observe()
        while time.thread_time() < end:
            pass
        return observation, reward, False, False, {}

    def _observe(self) -> NDArray[np.float32]:
        self._observation = self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)
        return self._observation


gym.register("Busy-v0", Busy, max_episode_steps=100)


def measure(ranks: int, iterations: int) -> dict[str, Any]:
    """Returns the speed of a training on some ranks, in environment steps per second, and its parts in seconds."""
    rollout = SETTINGS["num_envs"] * SETTINGS["rollout_steps"]
    phases, steps = Phases(), (FIRST + iterations) * rollout
    train_ppo(config_from_mapping({**SETTINGS, "ranks": ranks, "total_timesteps": steps}), [phases])
    each = [sum(pair) for pair in zip(phases.collected[FIRST:], phases.updated[FIRST:], strict=True)]
    return {
        "ranks": ranks,
        "steps_per_second": rollout / median(each),
        "collection_seconds": median(phases.collected[FIRST:]),
        "update_seconds": median(phases.updated[FIRST:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure PPO on two ranks against one.")
    parser.add_argument("--rounds", type=int, default=5, help="trainings of each kind (default: 5)")
    parser.add_argument("--iterations", type=int, default=20, help="measured iterations of a training (default: 20)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--only", type=int, metavar="RANKS", help="measure one training in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.iterations)))
        return
    load, runs = os.getloadavg()[0], []
    for _ in range(arguments.rounds):
        for ranks in (1, 2):
            words = [
                "-m",
                "benchmarks.speed.two_ranks",
                "--only",
                str(ranks),
                "--iterations",
                str(arguments.iterations),
            ]
            runs.append(run_recorded(words, 1))
            print(json.dumps(runs[-1]), flush=True)
    one, two = (median(run["steps_per_second"] for run in runs if run["ranks"] == ranks) for ranks in (1, 2))
    print(f"two ranks: {two / one:.2f} times the speed of one (aim: {AIM})")
    result = {"benchmark": NAME, "step_microseconds": MICROSECONDS, "aim": AIM, "ratio": two / one, "runs": runs}
    path = write_json(NAME, {**result, "load_average": load, **collect_provenance()}, arguments.results)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
