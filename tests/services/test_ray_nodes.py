"""Environments on two Ray nodes: the numbers are those of `sync`, also after a node has died."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.speed.ray_nodes import start_nodes
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_vector_env

STEPS = 60


def settings(vectorization: str) -> PPOConfig:
    fields: dict[str, Any] = {"num_envs": 4, "vectorization": vectorization, "rollout_steps": 128}
    return PPOConfig.model_validate({"env_id": "CartPole-v1", "total_timesteps": 1, **fields})


def play(vectorization: str, kill: tuple[int, int] | None = None) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Returns all observations and rewards, and the final snapshots.

    Args:
        vectorization: See the settings.
        kill: The step before which a node is killed, and its process.
    """
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, 4))
    seen: list[bytes] = []
    with closing(make_vector_env(settings(vectorization))) as envs:
        seen.append(envs.reset(seed=3)[0].tobytes())
        for step, action in enumerate(actions):
            if kill is not None and step == kill[0]:
                kill_node(kill[1])
            observation, reward, terminated, truncated, _ = envs.step(action)
            seen += [observation.tobytes(), reward.tobytes()]
            if (done := terminated | truncated).any():
                seen.append(envs.reset(options={"reset_mask": done})[0].tobytes())
        return seen, envs.snapshots()


def kill_node(pid: int) -> None:
    """Kills all processes of a node at once, as a power cut does; its actor would live for some time without it."""
    node = psutil.Process(pid)
    processes = [node, *node.children(recursive=True)]
    assert sum("EnvActor" in process.name() for process in processes) == 1
    for process in processes:
        process.kill()


def test_a_node_that_dies_in_mid_episode_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, snapshots = play("sync")
    with start_nodes([1, 1]) as (address, groups):
        monkeypatch.setenv("RAY_ADDRESS", address)
        found, restored = play("ray", kill=(25, groups[1]))
    assert found == expected
    assert re.search(r"the Ray actor of environments \d to \d died", caplog.text)
    for one, other in zip(snapshots, restored, strict=True):
        assert np.array_equal(one.pop("actions"), other.pop("actions"))
        assert np.array_equal(one.pop("observation"), other.pop("observation"))
        assert one == other
