"""Saving and loading of training state, field by field."""

from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.training_state import load_fields, save_fields
from rl_training.errors import CheckpointError
from rl_training.runtime.trainers.dqn_trainer import DQNTrainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer
from rl_training.runtime.trainers.sac_trainer import SACTrainer
from rl_training.runtime.trainers.td3_trainer import TD3Trainer
from rl_training.runtime.trainers.tqc_trainer import TQCTrainer
from tests.off_policy_parts import make_dqn, make_sac, make_td3, make_tqc
from tests.ppo_parts import make_ppo

BOX = gym.spaces.Box(-1.0, 1.0, (3,))
AGENTS = {
    "ppo": lambda: make_ppo(BOX, BOX),
    "dqn": lambda: make_dqn(),
    "sac": lambda: make_sac(),
    "td3": lambda: make_td3(),
    "tqc": lambda: make_tqc(),
}


@dataclass
class State:
    array: np.ndarray
    tensor: torch.Tensor
    rng: np.random.Generator
    count: int = 0
    nested: "State | None" = None


def make_state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    return State(rng.random(3, np.float32), torch.full((1,), float(seed)), rng, seed)


@pytest.mark.parametrize("algo", AGENTS)
def test_every_field_of_an_algorithms_state_is_saved(algo: str) -> None:
    agent = AGENTS[algo]()
    names = [field.name for field in fields(agent.state) if getattr(agent.state, field.name) is not None]
    assert list(agent.state_dict()) == names


def test_saved_fields_are_copies_and_restore_the_state() -> None:
    state, other = make_state(1), make_state(2)
    state.nested, other.nested = make_state(3), make_state(4)
    saved = save_fields(state)
    expected, drawn = state.array.copy(), state.rng.random()
    state.array[:] = 0.0
    load_fields(other, saved)
    assert other.array.tolist() == expected.tolist()
    assert (other.tensor.item(), other.count, other.rng.random()) == (1.0, 1, drawn)
    assert other.nested.count == 3


def test_a_field_that_is_none_by_default_is_left_out() -> None:
    saved = save_fields(make_state(1))
    assert "nested" not in saved
    load_fields(make_state(2), saved)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("array", torch.zeros(4), r"array: got torch.float32 \(4,\), expected torch.float32 \(3,\)"),
        ("array", torch.full((3,), torch.nan), "array has a NaN"),
        ("tensor", torch.zeros(1, dtype=torch.float64), "tensor: got torch.float64"),
        ("count", -1, "count: got -1"),
        ("nested", {**save_fields(make_state(3)), "count": "x"}, "nested/count: got 'x'"),
    ],
)
def test_a_value_of_another_form_is_refused_by_its_name(name: str, value: object, message: str) -> None:
    state = make_state(1)
    state.nested = make_state(3)
    with pytest.raises(CheckpointError, match=message):
        load_fields(state, {**save_fields(state), name: value})


@pytest.mark.parametrize("trainer", [PPOTrainer, DQNTrainer, SACTrainer, TD3Trainer, TQCTrainer])
def test_a_trainer_has_at_most_two_classes_of_the_package_above_it(trainer: type) -> None:
    above = [kind for kind in trainer.__mro__[1:] if kind.__module__.startswith("rl_training.")]
    assert len(above) <= 2
