"""A small checkpoint that several test files write and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.serialization import WrittenConfig
from rl_training.runtime.checkpoint import Checkpoint, write_checkpoint

CONFIG = PPOConfig(env_id="CartPole-v1", total_timesteps=1_000, seed=3)


def policy_state(shift: float = 0.0) -> dict[str, Any]:
    return {
        "weights": {"body": torch.arange(6, dtype=torch.float32).reshape(2, 3) + shift, "head": torch.ones(2)},
        "observation_normalizer": {"mean": np.array([0.5, -1.0]), "count": 12},
        "observation_space": {"type": "Box", "low": [float("-inf"), -1.0], "dtype": "float32"},
    }


def trainer_state(step: int) -> dict[str, Any]:
    return {
        "progress": {"num_timesteps": step, "phase": "collect", "recent_returns": [1.0, 2.5]},
        "rng": {"state": hex(2**127 + 5)},
        "frames": np.array([([1.5, 2.5], [[[1, 2], [3, 4]]])], [("vector", "f4", (2,)), ("camera", "u1", (1, 2, 2))]),
        "buffer": {"obs": np.arange(12, dtype=np.float32).reshape(3, 4), "dones": np.array([True, False, False])},
    }


def write(
    root: Path,
    step: int = 100,
    *,
    shift: float = 0.0,
    run_uid: str = "run-a",
    trainer: dict[str, Any] | None = None,
) -> Checkpoint:
    return write_checkpoint(
        root,
        config=WrittenConfig(CONFIG),
        run_uid=run_uid,
        algorithm="ppo",
        num_timesteps=step,
        policy=policy_state(shift),
        trainer=trainer or trainer_state(step),
    )
