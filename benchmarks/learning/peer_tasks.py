"""The tasks on which we learn beside Stable-Baselines3.

- `parity`: the default hyper-parameters of Stable-Baselines3 and its contrib package in both libraries;
- `parity-60k`: the same on Hopper in 60,000 steps, for each algorithm that takes its actions;
- `defaults`: each library with its own defaults, so ours has `algo`, `env_id` and `total_timesteps` alone;
- `mujoco`: long trainings at equal settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Group = Literal["parity", "parity-60k", "defaults", "mujoco"]


@dataclass(frozen=True, eq=False)
class PeerTask:
    """One algorithm in one environment."""

    group: Group
    algo: str
    env_id: str
    steps: int
    seeds: int
    minutes: float
    """Approximate duration of a training of Stable-Baselines3 on one core."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Our settings, besides the algorithm, the environment and the number of steps."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Stable-Baselines3's arguments, besides its defaults."""
    peer_algo: str = ""
    """The name of the algorithm there, if it is another one."""

    @property
    def label(self) -> str:
        """The name of the algorithm in the names of files and tables."""
        return self.peer_algo or self.algo

    @property
    def name(self) -> str:
        """The name of the row's file, such as `parity-ppo-Hopper-v5`."""
        return f"{self.group}-{self.label}-{self.env_id}"

    @property
    def title(self) -> str:
        """The title in tables, such as `PPO Hopper-v5`."""
        return f"{self.label.upper()} {self.env_id}"


_ACTOR_CRITIC: Mapping[str, Any] = {
    "num_envs": 1,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
    "n_step": 1,
    "hindsight": None,
    "warmup_hold": 1,
    "gamma": 0.99,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "tau": 0.005,
}
_SB3: Mapping[str, Mapping[str, Any]] = {
    "ppo": {
        "num_envs": 1,
        "action_mask": None,
        "rollout_steps": 2_048,
        "batch_size": 64,
        "epochs": 10,
        "learning_rate": 3e-4,
        "learning_rate_schedule": "constant",
        "clip_range": 0.2,
        "clip_range_schedule": "constant",
        "value_clip": None,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "entropy_coef": 0.0,
        "value_coef": 0.5,
        "max_grad_norm": 0.5,
        "normalization": {"reward": False},
        "normalize_advantage": True,
        "adam_epsilon": 1e-5,
        "network": {"hidden": [64, 64], "activation": "tanh", "initial_log_std": 0.0},
    },
    "dqn": {
        "num_envs": 1,
        "action_mask": None,
        "buffer_size": 1_000_000,
        "learning_starts": 100,
        "batch_size": 32,
        "train_freq": 4,
        "gradient_steps": 1,
        "n_step": 1,
        "hindsight": None,
        "gamma": 0.99,
        "learning_rate": 1e-4,
        "learning_rate_schedule": "constant",
        "exploration": {"start": 1.0, "end": 0.05, "fraction": 0.1},
        "target_update_every": 10_000,
        "double": False,
        "quantiles": 0,
        "prioritized_replay": None,
        "adam_epsilon": 1e-8,
        "dueling": False,
        "max_grad_norm": 10.0,
        "network": {"hidden": [64, 64], "activation": "relu"},
    },
    "sac": {
        **_ACTOR_CRITIC,
        "entropy_coef": "auto",
        "initial_entropy_coef": 1.0,
        "target_entropy": "auto",
        "network": {"hidden": [256, 256], "activation": "relu"},
    },
    "td3": {
        **_ACTOR_CRITIC,
        "learning_rate": 1e-3,
        "policy_delay": 2,
        "exploration_noise": 0.0,
        "target_noise": 0.2,
        "target_noise_clip": 0.5,
        "network": {"hidden": [400, 300], "activation": "relu"},
    },
}
SB3_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **_SB3,
    "qrdqn": {
        **_SB3["dqn"],
        "learning_rate": 5e-5,
        "exploration": {"start": 1.0, "end": 0.01, "fraction": 0.005},
        "quantiles": 200,
        "adam_epsilon": 0.01 / 32,
        "max_grad_norm": 1e9,  # gradients are not clipped
    },
    "tqc": {**_SB3["sac"], "critics": 2, "quantiles": 25, "drop_quantiles": 2},
}
"""The default hyper-parameters of Stable-Baselines3 and its contrib package as our settings."""

_PARITY = (
    # algorithm, environment, steps, seeds, minutes
    ("ppo", "Hopper-v5", 100_000, 17, 1.3),
    ("ppo", "HalfCheetah-v5", 100_000, 5, 1.3),
    ("sac", "Hopper-v5", 30_000, 5, 7.5),
    ("dqn", "LunarLander-v3", 100_000, 10, 1.2),
    ("dqn", "Acrobot-v1", 100_000, 10, 1.2),
)
_PARITY_60K = {"ppo": 0.8, "sac": 15.0, "td3": 12.0, "tqc": 20.0}
"""The minutes of each algorithm."""
_NOISY: Mapping[str, Any] = {"exploration_noise": 0.1}
"""Stable-Baselines3's TD3 has no noise by default, so it would not explore."""
_BARE = {
    "ppo": (
        "CartPole-v1",
        "Acrobot-v1",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
        "LunarLander-v3",
        "LunarLanderContinuous-v3",
        "Hopper-v5",
        "HalfCheetah-v5",
    ),
    "dqn": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"),
    "sac": ("Pendulum-v1", "MountainCarContinuous-v0", "LunarLanderContinuous-v3", "Hopper-v5", "HalfCheetah-v5"),
}
_BARE_STEPS = {"ppo": 100_000, "dqn": 100_000, "sac": 30_000}
_BARE_MINUTES = {"ppo": 1.3, "dqn": 1.2, "sac": 7.5}
_SAC_LONG = {"learning_starts": 10_000}

PEER_TASKS = (
    *(PeerTask("parity", *values, settings=SB3_DEFAULTS[values[0]]) for values in _PARITY),
    PeerTask("parity", "dqn", "LunarLander-v3", 100_000, 10, 2.5, SB3_DEFAULTS["qrdqn"], peer_algo="qrdqn"),
    *(
        PeerTask(
            "parity-60k",
            algo,
            "Hopper-v5",
            60_000,
            3,
            minutes,
            SB3_DEFAULTS[algo] | (_NOISY if algo == "td3" else {}),
            {"action_noise": 0.1} if algo == "td3" else {},
        )
        for algo, minutes in _PARITY_60K.items()
    ),
    *(
        PeerTask("defaults", algo, env_id, _BARE_STEPS[algo], 3, _BARE_MINUTES[algo])
        for algo, env_ids in _BARE.items()
        for env_id in env_ids
    ),
    *(
        PeerTask("mujoco", "sac", env_id, 300_000, 2, 75, SB3_DEFAULTS["sac"] | _SAC_LONG, _SAC_LONG)
        for env_id in ("HalfCheetah-v5", "Hopper-v5")
    ),
)
"""All tasks, in the order of the tables."""
