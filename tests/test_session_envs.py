"""Environments of a notebook or script: they work in its process, and other processes are told what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from case_envs.plain import Plain
from waiting import LIMIT

from rl_training import Callback, TrainerState, resume, train
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.resume_rules import Rule, find_differences
from rl_training.envs.validation import step_speed
from rl_training.envs.validation.validate import Finding, validate_env
from tests.tiny_tasks import PLAIN


class Walk(Plain):
    """Stands for an environment that a notebook defines."""


class Bonus(gym.RewardWrapper[Any, Any]):
    """Stands for a wrapper that a notebook defines."""

    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


@pytest.fixture(autouse=True)
def session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "TIMED_SECONDS", 1e-9)
    main = sys.modules["__main__"]
    for kind in (Walk, Bonus):
        monkeypatch.setattr(kind, "__module__", "__main__")
        monkeypatch.setattr(main, kind.__name__, kind, raising=False)
    gym.register("Walk-v0", entry_point=Walk)
    yield
    gym.registry.pop("Walk-v0")


def settings(env_id: str = "__main__:Walk-v0", **fields: Any) -> PPOConfig:
    return PPOConfig(**{**PLAIN, "env_id": env_id, "total_timesteps": 100, "promotion": {}, **fields})


def findings(config: PPOConfig) -> list[Finding]:
    return [finding for finding in validate_env(config).findings if finding.code == "no-module"]


@pytest.mark.parametrize("env_id", ["__main__:Walk-v0", "Walk-v0"])
def test_it_trains_with_a_warning_on_the_record_and_resumes_in_the_same_session(env_id, tmp_path):
    summary = train(settings(env_id, run_dir=tmp_path / "run"), track=False)
    (warning,) = json.loads((summary.run_dir / "metadata.json").read_text())["validation"]["warnings"]
    assert warning["code"] == "no-module"
    assert "env_id: Walk-v0 is defined in this session (__main__) alone" in warning["message"]
    assert "folder on PYTHONPATH, and write my_module:Walk-v0" in warning["message"]
    assert resume(summary.run_dir, total_timesteps=200, track=False).num_timesteps == 200


@pytest.mark.parametrize("env_id", ["__main__:Walk-v0", "Walk-v0"])
def test_a_stopped_run_says_that_this_session_resumes_it(env_id, tmp_path):
    class Interrupts(Callback):
        def on_update_end(self, state: TrainerState) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(settings(env_id, run_dir=tmp_path / "run"), [Interrupts()], track=False)
    assert stopped.lines()[1] == (
        f"resume with: rl_training.resume('{tmp_path}/run') in this session, which defines its environment"
    )
    assert resume(f"{tmp_path}/run", track=False).stop_reason == "completed"


def test_wrappers_and_evaluation_of_a_session_are_named_too():
    found = findings(
        settings("case_envs:Plain-v0", training_wrappers=["__main__:Bonus"], evaluation={"env_id": "__main__:Walk-v0"})
    )
    assert [finding.message.partition(" is defined")[0] for finding in found] == [
        "training_wrappers.0.name: Bonus",
        "evaluation.env_id: Walk-v0",
    ]
    assert {finding.severity for finding in found} == {"warning"}


@pytest.mark.parametrize("vectorization", ["async", "split"])
@pytest.mark.parametrize("env_id", ["__main__:Walk-v0", "Walk-v0"])
def test_worker_processes_are_refused_with_the_reason(vectorization, env_id, monkeypatch):
    monkeypatch.setattr("rl_training.envs.validation.other_processes.usable_cpus", lambda: 2)
    (finding,) = findings(settings(env_id, vectorization=vectorization))
    assert finding.severity == "fatal"
    assert f"set vectorization: sync, because {vectorization} makes it in worker processes" in finding.message


def test_a_split_that_needs_no_worker_is_only_warned_about(monkeypatch):
    monkeypatch.setattr("rl_training.envs.validation.other_processes.usable_cpus", lambda: 1)
    assert [finding.severity for finding in findings(settings(vectorization="split"))] == ["warning"]


def test_an_id_and_a_wrapper_that_were_put_into_a_module_may_change_on_resume():
    before = settings(wrappers=["__main__:Bonus"], training_wrappers=["__main__:Bonus", "ClipAction"])
    after = settings("walk:Walk-v0", wrappers=["walk:Bonus"], training_wrappers=["walk:Bonus", "ClipAction"])
    assert {difference.rule for difference in find_differences(before, after)} == {Rule.MAY_CHANGE}
    assert len(find_differences(before, after)) == 3
    other = settings("walk:Other-v0", wrappers=["walk:Bonus"], training_wrappers=["walk:Other", "ClipAction"])
    rules = {difference.key: difference.rule for difference in find_differences(before, other)}
    assert rules == {
        "env_id": Rule.MUST_EQUAL,
        "wrappers": Rule.MAY_CHANGE,
        "training_wrappers": Rule.MUST_EQUAL,
    }
    moved = find_differences(settings("walk:Walk-v0"), settings("run:Walk-v0"))
    assert [difference.rule for difference in moved] == [Rule.MUST_EQUAL]


CODE = """
import gymnasium as gym
import numpy as np

class Walk(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t / 10, np.float32), float(action), self.t == 10, False, {}

gym.register("Walk-v0", entry_point=Walk)
"""
TRAIN = """
from rl_training import PPOConfig, train_ppo
config = PPOConfig(env_id="__main__:Walk-v0", total_timesteps=64, num_envs=2, rollout_steps=16, batch_size=32,
                   evaluation={"every": 1_000, "final_episodes": 2, "video": False})
print(train_ppo(config).run_dir)
"""


@pytest.mark.slow
def test_another_process_says_what_to_do_and_then_resumes_it(home, tmp_path):
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "RL_TRAINING_HOME": str(home), "PYTHONPATH": str(tmp_path)}
        words = (sys.executable, *words)
        return subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT)

    run_dir = call("-c", CODE + TRAIN).stdout.strip()
    again = ("-m", "rl_training", "resume", run_dir, "--no-track", "--set", "total_timesteps=128")
    refused = call(*again)
    assert refused.returncode == 2
    assert "__main__ is the notebook or script that registered it" in refused.stderr
    (tmp_path / "walk.py").write_text(CODE)
    resumed = call(*again, "--set", "env_id=walk:Walk-v0")
    assert resumed.returncode == 0, resumed.stderr
