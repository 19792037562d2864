"""Trains one seed with Stable-Baselines3, evaluates the final policy greedily, and prints one line of JSON.

It runs in the environment of Stable-Baselines3, and takes one argument, which is JSON:

- `algo`, `env_id`, `steps`, `seed`: the training, in one environment, as `MlpPolicy`;
- `arguments`: the arguments that are not Stable-Baselines3's defaults; `action_noise` is the standard deviation of
  Gaussian noise;
- `episode_seeds`: the seed of each episode of the evaluation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.learning.episodes import play_episodes


def main() -> None:
    print(json.dumps(train(json.loads(sys.argv[1]))))


def train(task: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, evaluates, and returns the numbers of the result."""
    import gymnasium as gym
    import sb3_contrib
    import stable_baselines3
    import torch
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    env = gym.make(task["env_id"])
    name, arguments = task["algo"].upper(), dict(task["arguments"])
    if "action_noise" in arguments:
        size = env.action_space.shape
        arguments["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, arguments["action_noise"]))
    algorithm = getattr(stable_baselines3 if hasattr(stable_baselines3, name) else sb3_contrib, name)
    model = algorithm("MlpPolicy", env, seed=task["seed"], device="cpu", **arguments)
    began = time.perf_counter()
    model.learn(task["steps"])
    seconds = time.perf_counter() - began

    def act(observations: np.ndarray) -> np.ndarray:
        actions: np.ndarray = model.predict(observations, deterministic=True)[0]
        return actions

    returns = play_episodes(task["env_id"], task["episode_seeds"], act)
    return {
        "seed": task["seed"],
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns, ddof=1)),
        "episodes": len(returns),
        "num_timesteps": model.num_timesteps,
        "steps_per_second": model.num_timesteps / seconds,
        "returns": returns,
        "training_return": float(np.mean([episode["r"] for episode in model.ep_info_buffer])),  # the last 100 episodes
    }


if __name__ == "__main__":
    main()
