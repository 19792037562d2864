"""Runs one measured training of Stable-Baselines3, or of SBX, which has the same interface for JAX; see `meter.py`.

Stable-Baselines3's TQC is in its contrib package.

Both are used as in their documentation, with `VecNormalize` for normalised observations and rewards, and
`make_atari_env` with `VecFrameStack` for Atari. These differences remain: SBX's DQN does not clip gradients; the Atari
wrappers of Stable-Baselines3 make images gray and small in another way, end episodes with a life, and clip rewards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from benchmarks.speed.meter import Meter, Solved, parse_arguments
from benchmarks.speed.tasks import Task

PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")


def main() -> None:
    meter = Meter(parse_arguments())
    is_sbx = meter.arguments.contestant == "sbx"
    if is_sbx:  # XLA starts a thread for each available core
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: meter.arguments.threads])
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(meter.arguments.threads)
    task, seed = meter.task, meter.arguments.seed
    library = import_module("sbx" if is_sbx else "sb3_contrib" if task.algo == "tqc" else "stable_baselines3")

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            meter.record_step(self.num_timesteps)
            return True

    policy = "CnnPolicy" if "wrappers" in task.settings else "MlpPolicy"
    words = {"seed": seed, "device": "cpu", **translate(task.algo, task.settings)}
    if is_sbx:
        words.pop("max_grad_norm" if task.algo == "dqn" else "device")
        if policy == "CnnPolicy" and task.algo == "dqn":  # its default is another than Stable-Baselines3's
            words["policy_kwargs"] = {"net_arch": list(task.settings["network"]["hidden"])}
    envs = make_envs(task, seed)
    if task.algo == "td3":
        words["action_noise"] = make_noise(task, envs)
    model = getattr(library, task.algo.upper())(policy, envs, **words)
    meter.act = lambda observations: model.predict(observations, deterministic=True)[0]
    with suppress(Solved):
        model.learn(meter.steps, callback=Clock())
    meter.finish(model.num_timesteps, (*PACKAGES, *(("sbx-rl", "jax") if is_sbx else ())))


def make_envs(task: Task, seed: int) -> Any:
    """Returns the vector environment of a task."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    settings = task.settings
    num_envs = settings.get("num_envs", 1)
    if "wrappers" in settings:
        return VecFrameStack(make_atari_env(task.env_id, n_envs=num_envs, seed=seed), n_stack=4)
    envs = make_vec_env(task.env_id, n_envs=num_envs, seed=seed)
    return VecNormalize(envs, gamma=settings["gamma"]) if any(settings.get("normalization", {}).values()) else envs


def make_noise(task: Task, envs: Any) -> Any:
    """Returns the exploration noise of TD3, for actions in [-1, 1]."""
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    mean = np.zeros(envs.action_space.shape)
    return NormalActionNoise(mean, mean + task.settings["exploration_noise"])


def translate(algo: str, settings: Any) -> dict[str, Any]:
    """Returns our settings as arguments of Stable-Baselines3.

    Its `train_freq` counts steps of the vector environment. The network for images is its default, which is ours.
    """
    hidden, images = list(settings["network"]["hidden"]), "wrappers" in settings
    words = {"gamma": settings["gamma"], "batch_size": settings["batch_size"]}
    if algo == "ppo":
        return words | {
            "learning_rate": make_schedule(settings, "learning_rate"),
            "clip_range": make_schedule(settings, "clip_range"),
            "n_steps": settings["rollout_steps"],
            "n_epochs": settings["epochs"],
            "gae_lambda": settings["gae_lambda"],
            "ent_coef": settings["entropy_coef"],
            "vf_coef": settings["value_coef"],
            "max_grad_norm": settings["max_grad_norm"],
            "policy_kwargs": {} if images else {"net_arch": {"pi": hidden, "vf": hidden}},
        }
    words |= {name: settings[name] for name in ("learning_rate", "buffer_size", "learning_starts", "gradient_steps")}
    words |= {"train_freq": settings["train_freq"] // settings.get("num_envs", 1)}
    words |= {"policy_kwargs": {} if images else {"net_arch": hidden}}
    if algo == "td3":
        return words | {"tau": settings["tau"]}
    if algo in ("sac", "tqc"):
        return words | {"tau": settings["tau"], "ent_coef": "auto"}
    return words | {
        "target_update_interval": settings["target_update_every"],
        "exploration_fraction": settings["exploration"]["fraction"],
        "exploration_initial_eps": settings["exploration"]["start"],
        "exploration_final_eps": settings["exploration"]["end"],
        "max_grad_norm": settings["max_grad_norm"],
    }


def make_schedule(settings: Any, name: str) -> float | Callable[[float], float]:
    """Returns a constant, or a schedule that falls linearly from the value to zero."""
    value: float = settings[name]
    return (lambda left: left * value) if settings[f"{name}_schedule"] == "linear" else value


if __name__ == "__main__":
    main()
