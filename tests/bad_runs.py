"""Trainings that are made to go bad, each in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from case_envs.actions import AsymAct
from case_envs.plain import Plain

from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runs.health_warnings import Kind
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.trainer import Trainer


class Barren(Plain):
    """No action is ever rewarded."""

    def reward(self, action: Any) -> Any:
        return 0.0


class Turns(Plain):
    """Action 1 is right in odd steps, action 0 in even ones; the first feature tells which one is next."""

    def observe(self) -> Any:
        return np.array([1.0 if self.t % 2 else -1.0, 0.0, 0.0, 0.0], np.float32)

    def reward(self, action: Any) -> Any:
        return 1.0 if int(action) == self.t % 2 else 0.0


class Coarse(Plain):
    """Observations of the order of hundreds and rewards of the order of hundredths."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(-1e3, 1e3, (4,), np.float32)

    def observe(self) -> Any:
        return np.array([300.0, -200.0, 100.0, 50.0], np.float32) * (1.0 - 2.0 * self.t / self.length)

    def reward(self, action: Any) -> Any:
        return 0.01 * super().reward(action)


class Vain(AsymAct):
    """The same rewards whatever the action is, so that nothing can be learned; they differ from step to step."""

    def reward(self, action: Any) -> Any:
        return 1.0 if self.t % 3 else -1.0


for kind in (Barren, Turns, Coarse, Vain):
    gym.register(f"{kind.__name__}-v0", entry_point=f"bad_runs:{kind.__name__}")


class Breaks(Callback):
    """Changes the step size of a PPO trainer from a step on."""

    def __init__(self, from_step: int, learning_rate: float) -> None:
        self.from_step, self.learning_rate = from_step, learning_rate
        self.trainer: Any = None

    def on_collect_end(self, state: TrainerState) -> None:
        if state.num_timesteps >= self.from_step:
            algorithm = self.trainer.algorithm
            algorithm.config = algorithm.config.model_copy(update={"learning_rate": self.learning_rate})


PPO: dict[str, Any] = {
    "algo": "ppo",
    "normalization": {"reward": False},
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 4_000,
    "num_envs": 2,
    "rollout_steps": 50,
    "batch_size": 50,
    "learning_rate": 0.01,
    "network": {"hidden": [16]},
    "logging": {"every": 100},
    "evaluation": {"every": 200, "episodes": 3, "final_episodes": 3, "video": False},
    "checkpoint": {"every": 2_000},
    "promotion": {"enabled": False},
}
DQN: dict[str, Any] = {
    **{name: PPO[name] for name in ("env_id", "network", "logging", "evaluation", "checkpoint", "promotion")},
    "algo": "dqn",
    "total_timesteps": 2_000,
    "buffer_size": 1_000,
    "learning_starts": 100,
    "batch_size": 32,
    "train_freq": 1,
    "learning_rate": 0.01,
}


def make(settings: Mapping[str, Any], *callbacks: Any, **overrides: Any) -> Trainer:
    """Returns a trainer; a `Breaks` among the callbacks knows it."""
    trainer = DefaultExperimentManager().setup(config_from_mapping({**settings, **overrides}), callbacks)
    for callback in callbacks:
        if isinstance(callback, Breaks):
            callback.trainer = trainer
    return trainer


SAC: dict[str, Any] = {**DQN, "algo": "sac", "env_id": "bad_runs:Vain-v0", "total_timesteps": 1_500}

BAD: dict[str, tuple[Kind, Callable[[], Trainer]]] = {
    "step size too large after a good start": ("evaluation_fell", lambda: make(PPO, Breaks(2_000, 30.0))),
    "step size too large": (
        "exploration_collapsed",
        lambda: make(PPO, env_id="bad_runs:Turns-v0", learning_rate=30.0, seed=1),
    ),
    "no entropy": ("exploration_collapsed", lambda: make(SAC, entropy_coef=0.0, learning_rate=0.3)),
    "values that learn nothing": (
        "values_worse_than_constant",
        lambda: make(PPO, env_id="bad_runs:Coarse-v0", value_coef=0.0, gae_lambda=1.0),
    ),
    "no target network": (
        "q_values_diverged",
        lambda: make(DQN, target_update_every=1, gamma=1.0, learning_rate=0.05),
    ),
    "no rewards, PPO": ("returns_never_differ", lambda: make(PPO, env_id="bad_runs:Barren-v0")),
    "no rewards, DQN": ("returns_never_differ", lambda: make(DQN, env_id="bad_runs:Barren-v0")),
}
"""The fault of each training, the warning that it must get, and what makes its trainer."""
