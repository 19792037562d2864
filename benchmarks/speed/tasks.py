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


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and for how long."""

    name: str
    title: str
    algo: Literal["ppo", "dqn", "sac"]
    env_id: str
    settings: Mapping[str, Any]
    """Settings of the algorithm, without environment, seed, threads and steps."""
    steps: int
    """Environment steps of a run, summed over all environments."""
    warm: int = 0
    """Steps of the warm-up. The speed is measured after these steps and their updates."""


@dataclass(frozen=True, kw_only=True)
class SpeedTask(Task):
    """A row of the speed table."""

    of_sb3: float
    """Target of the speed, as a multiple of the speed of Stable-Baselines3."""
    of_best_peer: float | None = None
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


@dataclass(frozen=True, kw_only=True)
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
_DQN = {
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 64,
    "train_freq": 256,
    "gradient_steps": 128,
    "learning_rate": 2.3e-3,
    "gamma": 0.99,
    "target_update_every": 10,
    "exploration": {"start": 1.0, "end": 0.04, "fraction": 0.16},
    "max_grad_norm": 10.0,
    "network": {"hidden": (256, 256), "activation": "relu"},
}
_SAC = {
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "network": {"hidden": (256, 256), "activation": "relu"},
}

SPEED = (
    SpeedTask(
        name="ppo-cartpole",
        title="PPO CartPole-v1, 8 environments x 128 steps, 4 epochs, batch 256",
        algo="ppo",
        env_id="CartPole-v1",
        settings=_PPO,
        warm=4_096,
        steps=86_016,
        of_sb3=5,
        of_best_peer=4,
        tracked_steps=102_400,
        split=True,
        floor="collection",
    ),
    SpeedTask(
        name="dqn-cartpole",
        title="DQN CartPole-v1, 128 updates every 256 steps, batch 64",
        algo="dqn",
        env_id="CartPole-v1",
        settings=_DQN,
        warm=1_280,
        steps=10_240,
        of_sb3=6,
        of_best_peer=1.4,
        tracked_steps=15_360,
        every=5_000,
    ),
    SpeedTask(
        name="dqn-cartpole-f4",
        title="DQN CartPole-v1, one update every 4 steps, batch 128",
        algo="dqn",
        env_id="CartPole-v1",
        settings=_DQN
        | {"train_freq": 4, "gradient_steps": 1, "batch_size": 128, "learning_rate": 1e-3, "target_update_every": 500},
        warm=1_100,
        steps=11_100,
        of_sb3=4,
        of_best_peer=3.5,
    ),
    SpeedTask(
        name="ppo-cartpole-1024",
        title="PPO CartPole-v1, 1,024 native environments x 128 steps, 4 epochs, batch 4,096",
        algo="ppo",
        env_id="CartPole-v1",
        settings=_PPO | {"num_envs": 1_024, "batch_size": 4_096, "vectorization": "native"},
        warm=131_072,
        steps=6 * 131_072,
        of_sb3=20,
        base="ppo-cartpole",
        floor="collection",
    ),
    SpeedTask(
        name="sac-pendulum",
        title="SAC Pendulum-v1, one update per step, batch 256",
        algo="sac",
        env_id="Pendulum-v1",
        settings=_SAC,
        warm=1_050,
        steps=1_450,
        of_sb3=2,
        of_best_peer=1.15,
        floor="products",
    ),
)

SOLVED = (
    SolvedTask(
        name="solved-cartpole",
        title="CartPole-v1 by PPO",
        algo="ppo",
        env_id="CartPole-v1",
        config="configs/ppo/cartpole.yaml",
        settings=_PPO
        | {
            "rollout_steps": 32,
            "epochs": 20,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "clip_range_schedule": "linear",
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "entropy_coef": 0.0,
        },
        steps=100_000,
        threshold=475.0,
        every=5_000,
    ),
    SolvedTask(
        name="solved-pendulum",
        title="Pendulum-v1 by SAC",
        algo="sac",
        env_id="Pendulum-v1",
        config="configs/sac/pendulum.yaml",
        settings=_SAC | {"learning_rate": 1e-3, "learning_starts": 100},
        steps=20_000,
        threshold=-200.0,
        every=500,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in (*SPEED, *SOLVED)}
