"""Limits on open files: a low soft limit is raised, and a hard limit that is too low is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
algo: ppo
env_id: CartPole-v1
total_timesteps: 64
num_envs: 8
vectorization: async
rollout_steps: 4
batch_size: 16
network: {hidden: [8]}
evaluation: {every: 64, episodes: 1, final_episodes: 1, video: false}
promotion: {enabled: false}
run_dir: run
"""


@pytest.mark.slow
@pytest.mark.parametrize(("soft", "hard", "code"), [(32, 4096, 0), (32, 32, 2)])
def test_training_with_a_low_limit(soft: int, hard: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    line = [sys.executable, "-m", "rl_training", "train", "--config", "config.yaml", "--no-track"]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *line], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run").exists() == (code == 0)
    if code:
        assert done.stderr.splitlines()[-1] == (
            "error: too many open files: the limit is 32; raise it (`ulimit -n`, or the service's or container's "
            "setting), or lower num_envs = 8"
        )
