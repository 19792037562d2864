"""The tasks of the speed benchmarks, which are the same for all contestants.

Settings have the names of our own configs; the peers' scripts translate them. The peers also import this module, from
environments without our dependencies, so it needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OURS, SPLIT, TRACKED = "ours", "ours-split", "tracked"
IMPORTS = "imports"
"""The floor of start-up and memory: an interpreter that imports torch and gymnasium, and does nothing else."""
PEERS = ("sb3", "sbx", "cleanrl", "rejax")
COMPILED = ("rejax",)
"""The libraries that compile environments and training together, and don't step Gymnasium's environments."""
LABELS = {
    OURS: "rl_training",
    SPLIT: "rl_training, split over processes",
    TRACKED: "rl_training, tracked",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "cleanrl": "CleanRL",
    "rejax": "rejax",
    IMPORTS: "floor: torch and gymnasium imported",
}


@dataclass(frozen=True)
class Task:
    """A training task to measure, and its length."""

    name: str
    title: str
    algo: Literal["ppo", "dqn", "sac", "td3", "tqc"]
    env_id: str
    settings: Mapping[str, Any]
    """Settings of the algorithm, without environment, seed, threads and steps."""
    warm: int
    """Steps of the warm-up. The speed is measured after these steps and their updates."""
    steps: int
    """Environment steps of a run, summed over all environments."""

    def find_length(self, contestant: str) -> tuple[int, int]:
        """Returns the steps of a contestant's warm-up, and those of its complete run."""
        return self.warm, self.steps


@dataclass(frozen=True)
class SpeedTask(Task):
    """A row of the speed table."""

    of_sb3: float | None
    """Target of the speed, as a multiple of the speed of Stable-Baselines3; None for no target."""
    of_best_peer: float | None
    """Target of the speed, as a multiple of the fastest peer on Gymnasium's environments; None for no target."""
    peers: tuple[str, ...] = ("sb3", "sbx", "cleanrl")
    """The other libraries that can train this task."""
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Steps of the warm-up and of the run for contestants whose run has another length."""
    base: str | None = None
    """The task with whose speed of Stable-Baselines3 this task is compared; None for its own."""
    tracked_steps: int | None = None
    """Steps of the run with tracking, evaluations and checkpoints; None if there is no such run."""
    every: int = 10_000
    """Steps between evaluations and between checkpoints of the tracked run, as in the shipped config."""
    split: bool = False
    """Whether we are also measured with `vectorization: split`."""
    floor: Literal["collection", "products"] | None = None
    """The kind of limit that `floors.py` measures for this task, if any."""

    def find_length(self, contestant: str) -> tuple[int, int]:
        """Returns the steps of a contestant's warm-up, and those of its complete run."""
        return self.lengths.get(contestant, (self.warm, self.steps))


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
    "vectorization": "sync",  # as the peers, which step no native environments
    "normalization": {"reward": False},
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
_TD3 = _SAC | {"learning_rate": 1e-3, "exploration_noise": 0.1}

_NATIVE = {"num_envs": 1_024, "batch_size": 4_096, "vectorization": "native"}
_F4 = {"train_freq": 4, "gradient_steps": 1, "batch_size": 128, "learning_rate": 1e-3, "target_update_every": 500}
_ENVS4 = _F4 | {"num_envs": 4, "network": {"hidden": (64, 64), "activation": "relu"}}

_MUJOCO_PPO = _PPO | {
    "num_envs": 1,
    "rollout_steps": 2_048,
    "batch_size": 64,
    "epochs": 10,
    "learning_rate": 3e-4,
    "entropy_coef": 0.0,
    "normalization": {"observation": True, "reward": True},
}
_ATARI = {
    "num_envs": 8,
    "wrappers": (
        {"name": "AtariPreprocessing", "kwargs": {"noop_max": 30, "frame_skip": 4, "screen_size": 84}},
        {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}},
    ),
    "network": {"hidden": (512,), "activation": "relu"},
}
_ATARI_PPO = _PPO | _ATARI | {"clip_range": 0.1}
_ATARI_DQN = (
    _DQN
    | _ATARI
    | {
        "frame_channels": 1,
        "buffer_size": 10_000,
        "batch_size": 32,
        "train_freq": 8,
        "gradient_steps": 2,
        "learning_rate": 1e-4,
        "target_update_every": 1_000,
        "exploration": {"start": 1.0, "end": 0.01, "fraction": 0.1},
    }
)
_TITLES = {
    "ppo-cartpole": "PPO CartPole-v1, 8 environments x 128 steps, 4 epochs, batch 256",
    "dqn-cartpole": "DQN CartPole-v1, 128 updates every 256 steps, batch 64",
    "dqn-cartpole-f4": "DQN CartPole-v1, one update every 4 steps, batch 128",
    "dqn-cartpole-4-envs": "DQN CartPole-v1, 4 environments, one update every 4 steps, batch 128, 64-64 units",
    "ppo-cartpole-1024": "PPO CartPole-v1, 1,024 native environments x 128 steps, 4 epochs, batch 4,096",
    "sac-pendulum": "SAC Pendulum-v1, one update per step, batch 256",
    "td3-pendulum": "TD3 Pendulum-v1, one update per step, batch 256",
    "tqc-pendulum": "TQC Pendulum-v1, one update per step, batch 256, two critics of 25 quantiles",
    "ppo-halfcheetah": "PPO HalfCheetah-v5, 1 environment x 2,048 steps, 10 epochs, batch 64",
    "ppo-halfcheetah-8": "PPO HalfCheetah-v5, 8 environments x 256 steps, 10 epochs, batch 64",
    "sac-halfcheetah": "SAC HalfCheetah-v5, one update per step, batch 256",
    "ppo-pong": "PPO Pong, images, 8 environments x 128 steps, 4 epochs, batch 256",
    "dqn-pong": "DQN Pong, images, 8 environments, 2 updates every 8 steps, batch 32",
}
PONG = "ale_py:PongNoFrameskip-v4"
_SPEED: tuple[tuple[Any, ...], ...] = (
    # name, algorithm, environment, settings, warm-up, steps, target beside Stable-Baselines3, beside the fastest peer
    ("ppo-cartpole", "ppo", "CartPole-v1", _PPO, 4_096, 86_016, 5, 4),
    ("dqn-cartpole", "dqn", "CartPole-v1", _DQN, 1_280, 10_240, 3, 1.3),
    ("dqn-cartpole-f4", "dqn", "CartPole-v1", _DQN | _F4, 1_100, 11_100, 4, 3.5),
    ("dqn-cartpole-4-envs", "dqn", "CartPole-v1", _DQN | _ENVS4, 1_200, 21_200, None, None),
    ("ppo-cartpole-1024", "ppo", "CartPole-v1", _PPO | _NATIVE, 131_072, 6 * 131_072, 20, None),
    ("sac-pendulum", "sac", "Pendulum-v1", _SAC, 1_050, 1_450, 2.3, 1.25),
    ("td3-pendulum", "td3", "Pendulum-v1", _TD3, 1_050, 1_450, 2, 1),
    ("tqc-pendulum", "tqc", "Pendulum-v1", _SAC, 1_050, 1_450, 2, 1),
    ("ppo-halfcheetah", "ppo", "HalfCheetah-v5", _MUJOCO_PPO, 2_048, 5 * 2_048, 2.5, 1.5),
    (
        "ppo-halfcheetah-8",
        "ppo",
        "HalfCheetah-v5",
        _MUJOCO_PPO | {"num_envs": 8, "rollout_steps": 256},
        2_048,
        5 * 2_048,
        2.5,
        1.5,
    ),
    ("sac-halfcheetah", "sac", "HalfCheetah-v5", _SAC, 1_050, 1_450, None, 1.2),
    ("ppo-pong", "ppo", PONG, _ATARI_PPO, 1_024, 3 * 1_024, None, 1.2),
    ("dqn-pong", "dqn", PONG, _ATARI_DQN, 1_104, 2_104, None, 1.2),
)
_ALL = ("sb3", "sbx", "cleanrl", "rejax")
_MORE: dict[str, dict[str, Any]] = {
    "ppo-cartpole": {
        "peers": _ALL,
        "lengths": {"rejax": (0, 262_144)},
        "tracked_steps": 102_400,
        "split": True,
        "floor": "collection",
    },
    "dqn-cartpole": {"tracked_steps": 15_360, "every": 5_000, "floor": "products"},
    "dqn-cartpole-f4": {"floor": "products"},
    "dqn-cartpole-4-envs": {"peers": ("sb3", "sbx", "rejax"), "lengths": {"rejax": (1_200, 21_600)}},
    "ppo-cartpole-1024": {
        "peers": ("rejax",),
        "lengths": {"rejax": (0, 4 * 131_072)},
        "base": "ppo-cartpole",
        "floor": "collection",
    },
    "sac-pendulum": {"peers": _ALL, "lengths": {"rejax": (1_200, 1_600)}, "floor": "products"},
    "td3-pendulum": {"peers": ("sb3", "sbx")},
    "tqc-pendulum": {"peers": ("sb3", "sbx")},
    "ppo-pong": {"lengths": {"sbx": (1_024, 2 * 1_024)}},
    "dqn-pong": {"peers": ("sb3", "sbx"), "lengths": {"sbx": (1_104, 1_184)}},
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
