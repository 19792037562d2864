"""The tasks of the speed benchmarks, which are the same for all contestants.

Settings have the names of our own configs; the peers' scripts translate them. The peers also import this module, from
environments without our dependencies, so it needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

OURS, SPLIT, TRACKED = "ours", "ours-split", "tracked"
PEERS = ("sb3", "sbx", "cleanrl")
LABELS = {
    OURS: "rl_training",
    SPLIT: "rl_training, split over processes",
    TRACKED: "rl_training, tracked",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "cleanrl": "CleanRL",
}


@dataclass(frozen=True)
class Task:
    """A training task to measure, and its length."""

    name: str
    title: str
    algo: Literal["ppo", "dqn", "sac"]
    env_id: str
    settings: Mapping[str, Any]
    """Settings of the algorithm, without environment, seed, threads and steps."""
    warm: int
    """Steps of the warm-up. The speed is measured after these steps and their updates."""
    steps: int
    """Environment steps of a run, summed over all environments."""


@dataclass(frozen=True)
class SpeedTask(Task):
    """A row of the speed table."""

    of_sb3: float
    """Target of the speed, as a multiple of the speed of Stable-Baselines3."""
    of_best_peer: float | None
    """Target of the speed, as a multiple of the speed of the fastest peer."""
    base: str | None = None
    """The task with whose peers this task is compared; None for its own peers."""
    tracked_steps: int | None = None
    """Steps of the run with tracking, evaluations and checkpoints; None if there is no such run."""
    every: int = 10_000
    """Steps between evaluations and between checkpoints of the tracked run, as in the shipped config."""
    split: bool = False
    """Whether we are also measured with `vectorization: split`."""
    floor: Literal["collection", "products"] | None = None
    """The kind of limit that `floors.py` measures for this task, if any."""


@dataclass(frozen=True)
class SolvedTask(Task):
    """A task that is trained until it is solved; `settings` are the tuned settings of the peers."""

    config: str
    """The shipped config that we train."""
    threshold: float
    """Mean return of an evaluation that solves the task."""
    every: int
    """Steps between two evaluations."""


EPISODES = 10
"""Number of deterministic episodes of each evaluation, which are played in parallel."""

_PPO = {
    "num_envs": 8,
    "rollout_steps": 128,
    "batch_size": 256,
    "epochs": 4,
    "learning_rate": 2.5e-4,
    "learning_rate_schedule": "constant",
    "clip_range": 0.2,
    "clip_range_schedule": "constant",
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "adam_epsilon": 1e-5,
    "network": {"hidden": (64, 64), "activation": "tanh"},
}
_OFF_POLICY = {
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "network": {"hidden": (256, 256), "activation": "relu"},
}
_DQN = _OFF_POLICY | {
    "batch_size": 64,
    "train_freq": 256,
    "gradient_steps": 128,
    "learning_rate": 2.3e-3,
    "target_update_every": 10,
    "exploration": {"start": 1.0, "end": 0.04, "fraction": 0.16},
    "max_grad_norm": 10.0,
}
_SAC = _OFF_POLICY | {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_rate": 3e-4, "tau": 0.005}

_NATIVE = {"num_envs": 1_024, "batch_size": 4_096, "vectorization": "native"}
_F4 = {"train_freq": 4, "gradient_steps": 1, "batch_size": 128, "learning_rate": 1e-3, "target_update_every": 500}
_TITLES = {
    "ppo-cartpole": "PPO CartPole-v1, 8 environments x 128 steps, 4 epochs, batch 256",
    "dqn-cartpole": "DQN CartPole-v1, 128 updates every 256 steps, batch 64",
    "dqn-cartpole-f4": "DQN CartPole-v1, one update every 4 steps, batch 128",
    "ppo-cartpole-1024": "PPO CartPole-v1, 1,024 native environments x 128 steps, 4 epochs, batch 4,096",
    "sac-pendulum": "SAC Pendulum-v1, one update per step, batch 256",
}
_SPEED: tuple[tuple[Any, ...], ...] = (
    # name, algorithm, environment, settings, warm-up, steps, target beside Stable-Baselines3, beside the fastest peer
    ("ppo-cartpole", "ppo", "CartPole-v1", _PPO, 4_096, 86_016, 5, 4),
    ("dqn-cartpole", "dqn", "CartPole-v1", _DQN, 1_280, 10_240, 6, 1.4),
    ("dqn-cartpole-f4", "dqn", "CartPole-v1", _DQN | _F4, 1_100, 11_100, 4, 3.5),
    ("ppo-cartpole-1024", "ppo", "CartPole-v1", _PPO | _NATIVE, 131_072, 6 * 131_072, 20, None),
    ("sac-pendulum", "sac", "Pendulum-v1", _SAC, 1_050, 1_450, 2, 1.15),
)
_MORE: dict[str, dict[str, Any]] = {
    "ppo-cartpole": {"tracked_steps": 102_400, "split": True, "floor": "collection"},
    "dqn-cartpole": {"tracked_steps": 15_360, "every": 5_000},
    "ppo-cartpole-1024": {"base": "ppo-cartpole", "floor": "collection"},
    "sac-pendulum": {"floor": "products"},
}
SPEED = tuple(
    SpeedTask(name, _TITLES[name], algo, env_id, settings, warm, steps, of_sb3, of_best_peer, **_MORE.get(name, {}))
    for name, algo, env_id, settings, warm, steps, of_sb3, of_best_peer in _SPEED
)

_TUNED_PPO = _PPO | {
    "rollout_steps": 32,
    "epochs": 20,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_range_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "entropy_coef": 0.0,
}
_TUNED_SAC = _SAC | {"learning_rate": 1e-3, "learning_starts": 100}
_SOLVED: tuple[tuple[Any, ...], ...] = (
    # name, algorithm, environment, settings of the peers, steps, config, threshold, steps between two evaluations
    ("solved-cartpole", "ppo", "CartPole-v1", _TUNED_PPO, 100_000, "configs/ppo/cartpole.yaml", 475.0, 5_000),
    ("solved-pendulum", "sac", "Pendulum-v1", _TUNED_SAC, 20_000, "configs/sac/pendulum.yaml", -200.0, 500),
)
SOLVED = tuple(
    SolvedTask(name, f"{env_id} by {algo.upper()}", algo, env_id, settings, 0, steps, *own)
    for name, algo, env_id, settings, steps, *own in _SOLVED
)

TASKS: dict[str, Task] = {task.name: task for task in (*SPEED, *SOLVED)}
