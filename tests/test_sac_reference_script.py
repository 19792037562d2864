"""The written-out SAC runs as a script and learns bit for bit what the trainer learns."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.sac_pendulum_reference import evaluate, train
from rl_training.runtime.checkpoint import load_policy_state, open_checkpoint
from rl_training.runtime.trainers.sac_trainer import train_sac
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.off_policy_runs import sac

SCRIPT = Path(__file__).parents[1] / "examples" / "sac_pendulum_reference.py"


def test_the_script_trains_and_evaluates() -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "400", "--episodes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SCRIPT.parents[1])
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"step 200: return -\d+\.\d", lines[0])
    assert re.fullmatch(r"step 400: return -\d+\.\d", lines[1])
    assert re.fullmatch(r"mean return -\d+\.\d over 2 held-out episodes", lines[2])


@pytest.mark.parametrize("num_envs", [1, 2])
def test_it_learns_what_the_trainer_learns(num_envs: int, tmp_path: Path) -> None:
    config = sac(
        "Pendulum-v1", num_envs=num_envs, total_timesteps=300, learning_rate_schedule="linear", run_dir=tmp_path
    )
    agent, policy = train(config)
    result = train_sac(config)
    assert result.checkpoint is not None
    trained = load_policy_state(open_checkpoint(result.checkpoint))["weights"]
    weights = agent.policy_state()
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], torch.as_tensor(trained[name])) for name in weights)
    np.testing.assert_array_equal(
        evaluate(policy, config, 2).returns, evaluate_checkpoint(result.checkpoint, episodes=2).returns
    )
