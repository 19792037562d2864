"""An algorithm of another package that lacks a part is named as the cause, and no checkpoint is blamed for it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training import evaluate, load_policy, resume
from rl_training.algorithms.ppo import PPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import CheckpointError, UserError
from rl_training.experiment import registry
from rl_training.experiment.builtin import SPECS
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.policy import Policy
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainer_factory import make_trainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer

FIELDS: dict[str, Any] = {
    "env_id": "case_envs:Plain-v0",
    "total_timesteps": 64,
    "num_envs": 2,
    "rollout_steps": 32,
    "batch_size": 64,
    "evaluation": {"episodes": 2, "final_episodes": 2},
}


class TheirConfig(PPOConfig):
    algo: str = "theirs"  # type: ignore[assignment]


LOAD = partial(load_network_policy, config_type=TheirConfig, make_algorithm=PPO)


class Complete(PPOTrainer):
    """PPO as a plug-in; the others lack a part of it."""


class ForgetsReplay(Complete):
    def _replay_shards(self) -> Any:
        return None


class ForgetsState(Complete):
    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        return self.their_agent.load_states(policy, trainer)  # type: ignore[attr-defined, no-any-return]


class Actor:
    def __init__(self, policy: Policy) -> None:
        self.act = policy.act


class ForgetsSpaces(Complete):
    def policy(self) -> Any:
        return Actor(super().policy())


class ImplementsNothing(Complete):
    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        raise NotImplementedError("no resume yet")


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))

    def register_as(kind: type[Trainer], **changed: Any) -> None:
        own = {"make_trainer": partial(make_trainer, kind), "load_policy": LOAD, **changed}
        spec = replace(SPECS["ppo"], name="theirs", config_type=TheirConfig, **own)
        monkeypatch.setattr(registry, "_registered", {"theirs": spec})

    register_as(Complete)
    return register_as


def train_complete(run_dir: Path) -> Checkpoint:
    trainer = make_trainer(Complete, TheirConfig(**FIELDS, run_dir=run_dir))
    trainer.train()
    assert trainer.state.checkpoint is not None
    return trainer.state.checkpoint


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ForgetsReplay, "its ForgetsReplay has no _load_replay, which restores what its _replay_shards has saved"),
        (ForgetsState, "its ForgetsState has no their_agent"),
        (ForgetsSpaces, "its Actor has no observation_space"),
        (ImplementsNothing, "it does not implement what this needs (NotImplementedError: no resume yet)"),
    ],
)
def test_a_trainer_that_cannot_resume_is_the_cause(
    kind: type[Trainer], message: str, register: Callable[..., None], tmp_path: Path
) -> None:
    checkpoint = train_complete(tmp_path / "run")
    register(kind)
    with pytest.raises(UserError) as error:
        resume(checkpoint, track=False, total_timesteps=128)
    assert str(error.value) == f"algorithm theirs: {message}; add it, as the page on algorithms of your own describes"
    register(Complete)
    assert resume(checkpoint, track=False, total_timesteps=128).num_timesteps == 128


def test_a_trainer_that_cannot_be_fine_tuned_is_the_cause(register: Callable[..., None], tmp_path: Path) -> None:
    class NoWeights(Complete):
        carry_over = None  # type: ignore[assignment]

    checkpoint = train_complete(tmp_path / "run")
    register(NoWeights)
    with pytest.raises(CheckpointError) as error:
        resume(checkpoint, track=False, fine_tune=True)
    assert str(error.value) == (
        "algorithm theirs can't be fine-tuned: its NoWeights has no carry_over; add it, or start a new run instead"
    )


@pytest.mark.parametrize("use", [load_policy, partial(evaluate, episodes=1)])
@pytest.mark.parametrize("missing", ["observation_space", "action_space", "act"])
def test_a_policy_without_a_part_is_the_cause(
    missing: str, use: Callable[..., Any], register: Callable[..., None], tmp_path: Path
) -> None:
    checkpoint = train_complete(tmp_path / "run")
    parts = {"observation_space": None, "action_space": None, "act": list}
    register(Complete, load_policy=lambda checkpoint: SimpleNamespace(**{k: parts[k] for k in parts if k != missing}))
    with pytest.raises(UserError) as error:
        use(checkpoint)
    assert str(error.value).startswith(f"algorithm theirs: its SimpleNamespace has no {missing}; add it, ")


def test_a_damaged_policy_is_still_the_checkpoints_fault(register: Callable[..., None], tmp_path: Path) -> None:
    checkpoint = train_complete(tmp_path / "run")
    register(Complete, load_policy=lambda checkpoint: {}["weights"])
    with pytest.raises(CheckpointError, match=r"policy\.pt is refused: it does not hold a policy of theirs \(KeyError"):
        load_policy(checkpoint)
    register(Complete, load_policy=lambda checkpoint: [].items())
    with pytest.raises(CheckpointError, match=r"policy\.pt is refused: it does not hold a policy of theirs"):
        load_policy(checkpoint)
