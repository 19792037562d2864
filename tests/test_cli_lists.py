"""Training without a file, and the commands that list what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.cli.app import run
from rl_training.config.shipped_configs import find_shipped_root

QUICK = ["--set", "evaluation.final_episodes=2", "--set", "num_envs=1", "--set", "rollout_steps=64"]
QUICK += ["--set", "batch_size=64", "--set", "epochs=1", "--no-track"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


def output(capfd: Any, *words: str) -> Any:
    """Runs a command and returns the object that it prints."""
    assert run([*words, "--json"]) == 0, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def recorded(run_dir: str) -> dict[str, Any]:
    settings = yaml.safe_load((Path(run_dir) / "config.yaml").read_text())
    return {name: settings[name] for name in ("algo", "env_id", "total_timesteps", "seed")}


def test_a_run_needs_no_file(home: Path, capfd: Any) -> None:
    words = ["train", "--algo", "ppo", "--env", "case_envs:Plain-v0", "--timesteps", "1e2", "--seed", "7", *QUICK]
    summary = output(capfd, *words)
    assert recorded(summary["run_dir"]) == {
        "algo": "ppo",
        "env_id": "case_envs:Plain-v0",
        "total_timesteps": 100,
        "seed": 7,
    }
    assert summary["stop_reason"] == "completed"


def test_steps_and_seed_change_a_file_too(home: Path, capfd: Any) -> None:
    summary = output(capfd, "train", "--config", "ppo/cartpole", "--timesteps", "64", "--seed", "3", *QUICK)
    settings = recorded(summary["run_dir"])
    assert (settings["total_timesteps"], settings["seed"], settings["env_id"]) == (64, 3, "CartPole-v1")


@pytest.mark.slow
def test_a_flow_needs_no_file(home: Path, capfd: Any) -> None:
    quick = [word for word in QUICK if word != "--no-track"]
    words = ["flow", "train", "--env", "case_envs:Plain-v0", "--timesteps", "64", *quick]
    summary = output(capfd, *words, "--set", "promotion.enabled=false")
    assert recorded(summary["run_dir"])["env_id"] == "case_envs:Plain-v0"


def test_shipped_configs_are_listed(capfd: Any) -> None:
    listed = output(capfd, "configs")["configs"]
    assert {"name": "ppo/cartpole", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000} in listed
    assert len(listed) == len(list(find_shipped_root().glob("*/*.yaml")))
    assert run(["configs"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "algo", "env", "steps"]
    assert "100,000" in next(line for line in lines if line.startswith("ppo/cartpole "))
