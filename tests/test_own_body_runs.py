"""Runs whose networks have a body of the user's own: trained, resumed, fine-tuned, and refused before they begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.resume.run_comparison import find_differences
from rl_training import load_policy
from rl_training.cli.app import run
from rl_training.errors import CheckpointError, EnvironmentRefused
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.experiment.registry import get_algorithm
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.checkpoint import find_checkpoint, load_policy_state
from rl_training.runtime.trainer import TrainResult
from rl_training.tracking.metric_log import MetricLog
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()
COMMON: dict[str, Any] = {
    "seed": 3,
    "num_envs": 2,
    "total_timesteps": 160,
    "normalization": {"reward": True},
    "logging": {"every": 20},
    "evaluation": {"every": 80, "episodes": 1, "num_envs": 1, "max_episode_steps": 20, "video": False},
    "checkpoint": {"every": 999},
}
OFF_POLICY = {"buffer_size": 100, "learning_starts": 40, "batch_size": 16, "train_freq": 8, "gradient_steps": 2}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"env_id": "CartPole-v1", "rollout_steps": 32, "batch_size": 16, "epochs": 2},
    "dqn": {"env_id": "CartPole-v1", "target_update_every": 30, "double": True, "dueling": True, **OFF_POLICY},
    "sac": {"env_id": "Pendulum-v1", **OFF_POLICY},
    "td3": {"env_id": "Pendulum-v1", **OFF_POLICY},
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(algo: str, body: Any, **fields: Any) -> Any:
    fields = {**COMMON, **ALGORITHMS[algo], "algo": algo, "network": {"hidden": [8], "body": body}, **fields}
    return config_from_mapping(fields)


def train(run_dir: Path, algo: str, body: Any, stop: StopFlag | None = None, **fields: Any) -> TrainResult:
    config = settings(algo, body, run_dir=str(run_dir), **fields)
    return MANAGER.setup(config, [MetricLog(run_dir)], stop=stop).train()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_body_that_returns_vectors_as_they_are_changes_no_bit_of_a_training(algo: str, tmp_path: Path) -> None:
    train(tmp_path / "built-in", algo, None)
    train(tmp_path / "own", algo, "bodies:Vectors")
    assert find_differences(tmp_path / "built-in", tmp_path / "own") == []


IMAGES = {"env_id": "case_envs:GreyImage-v0"}
PARTS = {"env_id": "case_envs:DictObs-v0"}
MEMORY = {"hidden": [8], "recurrent": "gru", "recurrent_size": 5, "body": "bodies:Residual"}


@pytest.mark.parametrize(
    ("algo", "body", "fields", "polls"),
    [
        ("ppo", "bodies:Residual", IMAGES, 72),
        ("ppo", "bodies:Residual", {**IMAGES, "network": MEMORY, "batch_size": 32}, 62),
        ("ppo", "bodies:Parts", PARTS, 62),
        ("ppo", "bodies:Normed", {"normalization": {"observation": True}}, 45),
        ("dqn", "bodies:Residual", IMAGES, 50),
        ("dqn", {"name": "bodies:Normed", "kwargs": {"width": 9}}, {}, 61),
        ("sac", "bodies:Normed", {}, 60),
        ("sac", "bodies:Constants", {}, 75),
        ("sac", "bodies:Frozen", {}, 53),
        ("td3", "bodies:Normed", {}, 60),
    ],
)
def test_a_resume_from_any_moment_ends_with_the_same_bits(
    algo: str, body: Any, fields: dict[str, Any], polls: int, tmp_path: Path
) -> None:
    train(tmp_path / "whole", algo, body, **fields)
    stopped = train(tmp_path / "stopped", algo, body, StopAfterPolls(polls), **fields)
    assert 40 < stopped.num_timesteps < 160
    torch.manual_seed(polls)  # which plays no part
    trainer = MANAGER.resume(stopped.run_dir, [MetricLog(stopped.run_dir)])
    assert trainer.train().stop_reason == "completed"
    assert find_differences(tmp_path / "whole", tmp_path / "stopped") == []


def test_another_body_is_refused_on_a_resume_and_in_fine_tuning(tmp_path: Path) -> None:
    run_dir = train(tmp_path / "run", "ppo", "bodies:Normed").run_dir
    for fine_tune in (False, True):
        with pytest.raises(CheckpointError, match=r"network\.body\.kwargs\.width: None -> 7 \(must be equal\)"):
            MANAGER.resume(run_dir, fine_tune=fine_tune, **{"network.body.kwargs": {"width": 7}})
        with pytest.raises(CheckpointError, match=r"network\.body\.name: 'bodies:Normed' -> None \(must be equal\)"):
            MANAGER.resume(run_dir, fine_tune=fine_tune, network={"body": None})


def test_a_class_of_a_notebook_may_move_into_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bodies

    import __main__

    monkeypatch.setattr(__main__, "Normed", bodies.Normed, raising=False)
    train(tmp_path / "whole", "ppo", "bodies:Normed")
    stopped = train(tmp_path / "stopped", "ppo", "__main__:Normed", StopAfterPolls(40))
    monkeypatch.delattr(__main__, "Normed")
    resumed = MANAGER.resume(stopped.run_dir, **{"network.body.name": "bodies:Normed"}).train()
    expected, got = (find_checkpoint(run_dir).policy_sha256 for run_dir in (tmp_path / "whole", resumed.run_dir))
    assert expected == got


def test_fine_tuning_keeps_the_layers_of_a_body_that_fit(tmp_path: Path) -> None:
    run_dir = train(tmp_path / "run", "ppo", "bodies:Normed").run_dir
    trainer = MANAGER.resume(run_dir, fine_tune=True, env_id="Acrobot-v1", total_timesteps=64)
    run_dir = trainer.train().run_dir
    tuned = json.loads((run_dir / "metadata.json").read_text())["forked_from"]["fine_tuning"]
    body, first = ("body.module.linear.weight", "body.module.linear.bias"), ("mlps.weights.0", "mlps.biases.0")
    assert {*body} <= {*tuned["fresh"]}
    assert {"body.module.norm.weight", "body.module.norm.bias", *first} <= {*tuned["carried"]}
    assert load_policy_state(find_checkpoint(run_dir))["weights"][body[0]].shape == (6, 6)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_policy_of_a_checkpoint_acts_as_the_trainer_does(algo: str) -> None:
    trainer = MANAGER.setup(settings(algo, "bodies:Normed"))
    trainer.train()
    policy = load_policy(trainer.run.run_dir)
    policy.observation_space.seed(0)
    observations = np.clip(np.stack([policy.observation_space.sample() for _ in range(20)]), -3, 3)
    expected = np.asarray(trainer.policy().act(list(observations)))
    assert policy.act(observations).tolist() == expected.tolist()
    assert len(np.unique(expected)) > 1


def test_a_wrong_body_is_refused_before_there_is_a_run(own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = {"name": "bodies:Wrong", "kwargs": {"fault": "dropout"}}
    refusal = "network.body: bodies:Wrong: returned different features for the same observations"
    with pytest.raises(EnvironmentRefused, match=refusal) as refused:
        get_algorithm("ppo").train(settings("ppo", wrong))
    assert "leave out dropout" in str(refused.value)
    assert not list((own_home / "runs").glob("*"))
    assert run(["validate-env", "CartPole-v1", "--set", f"network.body={json.dumps(wrong)}"]) == 2
    assert refusal in capfd.readouterr().out
    assert run(["validate-env", "CartPole-v1", "--set", "network.body=bodies:Normed"]) == 0
