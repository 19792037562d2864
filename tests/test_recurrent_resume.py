"""A run with a memory that is stopped anywhere, also within an episode, and resumed equals the uninterrupted run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import CheckpointError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import load_policy_state, load_trainer_state, open_checkpoint
from rl_training.runtime.fine_tuning import CarriedOver
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer
from tests.off_policy_runs import Events, StopsAt
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()


def settings(**fields: Any) -> PPOConfig:
    """Rollouts of 16 steps of 2 environments in sequences of 8; the last one has 4 steps."""
    network = {"hidden": [8], "recurrent": "lstm", "recurrent_size": 6, **fields.pop("network", {})}
    small = {
        "num_envs": 2, "rollout_steps": 16, "sequence_length": 8, "batch_size": 16, "epochs": 2,
        "total_timesteps": 104, "learning_rate": 0.01, "learning_rate_schedule": "linear",
        "normalization": {"observation": True, "reward": True}, "logging": {"every": 20},
        "evaluation": {"every": 60, "episodes": 2, "num_envs": 2}, "checkpoint": {"every": 10**6},
    }  # fmt: skip
    fields = {"env_id": "CartPole-v1", "wrappers": ["HideVelocities"], **small, **fields}
    return PPOConfig(network=network, seed=7, **fields)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def bits(result: TrainResult) -> tuple[str, str]:
    """The policy's hash, and all of the training state as text, without the times of callbacks."""
    assert result.checkpoint is not None
    checkpoint = open_checkpoint(result.checkpoint)
    state = load_trainer_state(checkpoint)
    return checkpoint.policy_sha256, describe(
        {name: state[name] for name in ("algorithm", "envs", "buffer", "observation")}
    )


def describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {describe(item)}' for key, item in value.items())}}}"
    if hasattr(value, "tobytes"):
        return value.tobytes().hex()
    return value.numpy().tobytes().hex() if hasattr(value, "numpy") else repr(value)


def compare(config: PPOConfig, stops: list[int]) -> set[str]:
    """Stops a run after each number of polls and resumes it; returns the phases of the stops."""
    whole, phases = Events(), set()
    expected = bits(MANAGER.setup(config, [whole]).train())
    for polls in stops:
        points = Events()
        stopped = MANAGER.setup(config, [points], stop=StopAfterPolls(polls)).train()
        if stopped.stop_reason == "completed":
            return phases
        state = load_trainer_state(open_checkpoint(stopped.checkpoint))
        assert "memories" in state["algorithm"]
        phases.add(state["progress"]["phase"])
        resumed = MANAGER.resume(stopped.run_dir, [points]).train()
        assert (resumed.stop_reason, resumed.num_timesteps) == ("completed", 104)
        assert bits(resumed) == expected, polls
        assert points.points == whole.points, polls
    return phases


# Two polls a step and one a minibatch; an update has 4 minibatches, or 2 after the shortened rollout.
@pytest.mark.parametrize(
    ("kind", "vectorization", "stops"),
    [
        ("lstm", "sync", [1, 15, 33, 34, 35, 36, 45, 70, 72, 84, 110, 123]),
        ("gru", "sync", [15, 34, 50]),
        ("lstm", "split", [15, 35]),
        pytest.param("lstm", "async", [15, 35], marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_anywhere_and_resumed_equals_the_uninterrupted_run(
    kind: str, vectorization: str, stops: list[int]
) -> None:
    config = settings(network={"recurrent": kind}, vectorization=vectorization)
    assert compare(config, stops) == {"collect", "update"}


@pytest.mark.slow
def test_a_run_stopped_at_any_poll_equals_the_uninterrupted_run() -> None:
    assert compare(settings(), list(range(1, 400))) == {"collect", "update"}


def trainer_of(trainer: Any) -> PPOTrainer:
    assert isinstance(trainer, PPOTrainer)
    return trainer


def test_an_episode_that_could_not_be_brought_back_is_forgotten() -> None:
    config = settings(env_id="case_envs:NotDeterministic-v0", wrappers=[], logging={"every": 1})
    stopped = MANAGER.setup(config, [StopsAt(32)]).train()
    state = load_trainer_state(open_checkpoint(stopped.checkpoint))
    assert np.asarray(state["algorithm"]["memories"]).any(axis=(1, 2, 3)).tolist() == [True, True]
    resumed = trainer_of(MANAGER.resume(stopped.run_dir))
    assert not resumed.algorithm.state.memories.any()
    assert resumed.train().num_timesteps == 104


def test_memories_of_another_size_are_refused() -> None:
    trainer = trainer_of(MANAGER.setup(settings()))
    state = trainer.algorithm.state_dict()
    state["memories"] = state["memories"][:1]
    with pytest.raises(
        CheckpointError, match=r"memories: got torch.float32 \(1, 2, 2, 6\), expected .* \(2, 2, 2, 6\)"
    ):
        trainer.algorithm.load_state_dict(state)
    trainer.discard()


def test_a_checkpoint_that_is_smaller_than_its_settings_say_is_refused() -> None:
    done = MANAGER.setup(settings()).train()
    checkpoint = open_checkpoint(done.checkpoint)
    PPOTrainer.require_size(settings(), checkpoint)
    with pytest.raises(CheckpointError, match=r"it has at least [\d,]+ in 2 layers, and the checkpoint 571 in"):
        PPOTrainer.require_size(settings(network={"recurrent_size": 60}), checkpoint)


def test_fine_tuning_carries_the_layers_that_fit() -> None:
    done = MANAGER.setup(settings()).train()
    policy = load_policy_state(open_checkpoint(done.checkpoint))
    fields = {"env_id": "Pendulum-v1", "run_dir": None}
    trainer = trainer_of(MANAGER.setup(settings(**fields)))
    carried = trainer.carry_over(policy, None)
    assert isinstance(carried, CarriedOver)
    assert "policy.layer.weights" in carried.carried  # both tasks show two features
    assert {"policy.mlp.head_weights.0", "distribution.log_std"} <= {*carried.fresh}
    trainer.discard()
