"""Checkpoints of earlier versions can be read: one of each format version, as that version wrote it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import (
    list_checkpoints,
    load_policy_state,
    load_trainer_state,
    newest_good,
    open_checkpoint,
)
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy

GOLDEN = Path(__file__).parent / "golden"


def test_format_1() -> None:
    checkpoint = open_checkpoint(GOLDEN / "format_1" / "step_000000100352")
    assert (checkpoint.num_timesteps, checkpoint.algorithm, checkpoint.run_uid) == (100_352, "ppo", "0" * 32)
    assert checkpoint.policy_sha256 == "49944ae5ca437d7a1f3342982667b852c45db8391e430bce5d956052e61e374a"
    assert "env_id: CartPole-v1\n" in checkpoint.config_text()

    policy = load_policy_state(checkpoint)
    assert torch.equal(policy["weights"]["body"], torch.arange(6.0).reshape(2, 3))
    assert policy["observation_normalizer"]["mean"].tolist() == [0.5, -1.0]
    assert policy["observation_space"]["low"] == [float("-inf"), -1.0]

    trainer = load_trainer_state(checkpoint)
    assert trainer["progress"] == {"num_timesteps": 100_352, "phase": "collect", "recent_returns": [1.0, 2.5]}
    assert trainer["rng"] == {"state": hex(2**127 + 5)}
    assert trainer["frames"].dtype == np.dtype([("vector", "f4", (2,)), ("camera", "u1", (1, 2, 2))])
    assert trainer["frames"]["camera"].ravel().tolist() == [1, 2, 3, 4]
    assert trainer["buffer"]["dones"].tolist() == [True, False, False]


def test_ppo_of_format_1_acts_evaluates_and_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by `golden/write_ppo_format_1.py`: stopped two minibatches into the update at step 64 of 96."""
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    checkpoint = open_checkpoint(GOLDEN / "ppo_format_1" / "step_000000000064")
    observations = list(np.random.default_rng(0).uniform(-1, 1, (12, 4)).astype(np.float32))
    actions = [int(action) for action in load_policy(checkpoint).act(observations)]
    assert actions == [0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert evaluate_checkpoint(checkpoint, episodes=2).episodes == 2

    trainer = DefaultExperimentManager().resume(checkpoint)
    assert (trainer.num_timesteps, trainer.progress.phase, trainer.progress.iteration) == (64, "update", 3)
    result = trainer.train()
    assert (result.num_timesteps, result.stop_reason) == (96, "completed")
    assert trainer.progress.iteration == 6  # the update under way, and two rollouts of 2 environments * 8 steps
    assert tmp_path in result.run_dir.parents


def test_every_golden_checkpoint_is_the_newest_good_of_its_folder() -> None:
    for folder in {path.parent for path in GOLDEN.glob("*/step_*")}:
        found, skipped = newest_good(folder)
        assert found is not None
        assert (len(list_checkpoints(folder)[0]), skipped) == (1, [])
