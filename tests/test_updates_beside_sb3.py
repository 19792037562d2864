"""Updates beside those of Stable-Baselines3, from the same weights, data and noise; see `golden/write_sb3_updates.py`.

Both compute in float32, in different orders, so their weights differ by rounding alone.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.continuous.actor_critic import OffPolicyActorCritic
from rl_training.algorithms.continuous.sac import SAC
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.networks.mlp import StackedMLP
from tests.off_policy_parts import make_dqn, make_sac, make_td3, make_tqc
from tests.ppo_parts import make_buffer, make_ppo

GOLDEN = json.loads((Path(__file__).parent / "golden/sb3_updates.json").read_text())
SPACES = {name: gym.make(name) for name in ("CartPole-v1", "Pendulum-v1")}
ROUNDING = 5e-6
"""Allowed difference of a weight, which the steps of Adam move by up to 0.01.

TQC's loss is the sum over the critics here and the mean there, which Adam's epsilon lets through for tiny gradients.
"""


def floats(numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def load_layers(mlps: StackedMLP, networks: list[Any]) -> None:
    """Copies the layers of each network into a stack."""
    for s, layers in enumerate(networks):
        for layer, (weight, bias) in enumerate(layers[:-1]):
            mlps.weights[layer].data[s].copy_(torch.tensor(weight))
            mlps.biases[layer].data[s].copy_(torch.tensor([bias]))
        mlps.head_weights[s].data.copy_(torch.tensor(layers[-1][0]))
        mlps.head_biases[s].data.copy_(torch.tensor(layers[-1][1]))


def assert_layers(mlps: StackedMLP, before: list[Any], after: list[Any]) -> None:
    """Compares a stack with the layers of each network, of which each has moved much further than rounding."""
    for s, layers in enumerate(after):
        for layer, expected in enumerate(layers):
            hidden = layer < len(layers) - 1
            weight = mlps.weights[layer][s] if hidden else mlps.head_weights[s]
            bias = mlps.biases[layer][s, 0] if hidden else mlps.head_biases[s]
            for ours, theirs, start in zip((weight, bias), expected, before[s][layer], strict=True):
                np.testing.assert_allclose(ours.detach().numpy(), floats(theirs), rtol=0, atol=ROUNDING)
                assert np.abs(floats(theirs) - floats(start)).max() > 10 * ROUNDING


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_ppo_learns_the_same_from_a_rollout(env_id: str) -> None:
    golden, spaces = GOLDEN["ppo"][env_id], (SPACES[env_id].observation_space, SPACES[env_id].action_space)
    ppo = make_ppo(
        *spaces,
        num_envs=1, rollout_steps=64, batch_size=16, epochs=3, learning_rate=3e-4, learning_rate_schedule="constant",
        clip_range=0.2, clip_range_schedule="constant", value_clip=None, gamma=0.99, gae_lambda=0.95, entropy_coef=0.0,
        value_coef=0.5, max_grad_norm=0.5, normalize_advantage=True, adam_epsilon=1e-5,
        network={"hidden": [8, 8], "activation": "tanh", "initial_log_std": 0.0},
    )  # fmt: skip
    before, after = ([golden[when]["policy"], golden[when]["value"]] for when in ("before", "after"))
    load_layers(ppo.network.mlps, before)
    buffer = make_buffer(ppo, *spaces)
    observations, next_observations = (floats(golden[f"{name}observations"]) for name in ("", "next_"))
    terminated, truncated = (np.array(golden[name], bool) for name in ("terminated", "truncated"))
    assert terminated.any() == (env_id == "CartPole-v1")
    assert truncated.any()
    final_values, actions = ppo.value(next_observations), np.array(golden["actions"])
    for t in range(64):
        one = slice(t, t + 1)
        action = actions[one, 0].astype(int) if env_id == "CartPole-v1" else floats(actions[one])
        rewards, values, log_probs = (floats(golden[name])[one] for name in ("rewards", "values", "log_probs"))
        ends = terminated[one], truncated[one]
        buffer.add(observations[one], action, rewards, *ends, values, log_probs, final_values[one])
    buffer.compute_returns_and_advantages(ppo.value(next_observations[-1:]), 0.99, 0.95)
    np.testing.assert_allclose(ppo.value(observations), floats(golden["values"]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(buffer.advantages[:, 0], floats(golden["advantages"]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(buffer.returns[:, 0], floats(golden["returns"]), rtol=1e-5, atol=1e-5)

    permutations = iter(np.array(golden["permutations"]))
    ppo._draw_order = lambda buffer: next(permutations)  # type: ignore[method-assign]
    metrics = ppo.update(buffer, 0.0, lambda: None)
    assert_layers(ppo.network.mlps, before, after)
    if env_id == "Pendulum-v1":
        log_std = dict(ppo.network.distribution.named_parameters())["log_std"].detach().numpy()
        np.testing.assert_allclose(log_std, floats(golden["after"]["log_std"]), rtol=0, atol=ROUNDING)
    assert metrics["train/explained_variance"] == pytest.approx(golden["explained_variance"], abs=1e-4)


def read_batches(golden: dict[str, Any], action_dtype: type) -> list[ReplayBatch]:
    """The batches that Stable-Baselines3 drew; an episode of theirs is cut, not terminated, unless it is done."""
    return [
        ReplayBatch(
            floats(batch["observations"]),
            np.array(batch["actions"], action_dtype),
            floats(batch["rewards"]),
            floats(batch["next_observations"]),
            np.float32(0.99) * (1 - floats(batch["dones"])),
        )
        for batch in golden["batches"]
    ]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {"quantiles": 0, "learning_rate": 1e-3, "adam_epsilon": 1e-8, "max_grad_norm": 10.0}),
        ("qr_dqn", {"quantiles": 5, "learning_rate": 5e-5, "adam_epsilon": 0.01 / 16, "max_grad_norm": 1e9}),
    ],
)
def test_dqn_learns_the_same_from_batches(name: str, settings: dict[str, Any]) -> None:
    golden = GOLDEN[name]
    common = {"double": False, "dueling": False, "learning_rate_schedule": "constant", "batch_size": 16}
    network = {"hidden": [8, 8], "activation": "relu"}
    dqn = make_dqn(SPACES["CartPole-v1"].observation_space, 2, network=network, **common, **settings)
    before, after = ([golden[when]["q"]] for when in ("before", "after"))
    load_layers(dqn.network.observed.mlps, before)
    load_layers(dqn.target_network.observed.mlps, [golden["before"]["target"]])
    for batch in read_batches(golden, int):
        batch.actions.shape = (16,)
        dqn.update(batch, 0.5)
    assert_layers(dqn.network.observed.mlps, before, after)


class Recorded:
    """Gives the recorded noise instead of random numbers."""

    def __init__(self, noise: list[Any]) -> None:
        self._noise = iter(noise)

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        noise: np.ndarray = np.array(next(self._noise), dtype)
        assert noise.shape == shape
        return noise


def learn(agent: OffPolicyActorCritic, golden: dict[str, Any]) -> None:
    """Loads the weights, and takes the updates; the targets of the critics must then be equal too."""
    before, after, state = golden["before"], golden["after"], agent.state
    stacks = {"critics": agent.critics.mlps, "targets": agent.target_critics.mlps}
    load_layers(agent.actor.mlps, [before["actor"]])
    for name, stack in stacks.items():
        load_layers(stack, before[name])
    state.noise_rng = Recorded(golden["noise"])  # type: ignore[assignment]
    for batch in read_batches(golden, np.float32):
        agent.update(batch, 0.0)
    assert_layers(agent.actor.mlps, [before["actor"]], [after["actor"]])
    for name, stack in stacks.items():
        assert_layers(stack, before[name], after[name])


SETTINGS: dict[str, Any] = {
    "network": {"hidden": [8, 8], "activation": "relu"}, "tau": 0.005, "learning_rate_schedule": "constant",
    "batch_size": 16, "n_step": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "settings"),
    [("sac", make_sac, {}), ("tqc", make_tqc, {"critics": 2, "quantiles": 5, "drop_quantiles": 1})],
)
def test_sac_and_tqc_learn_the_same_from_batches(name: str, make: Callable[..., SAC], settings: dict[str, Any]) -> None:
    env, golden = SPACES["Pendulum-v1"], GOLDEN[name]
    temperature = {"entropy_coef": "auto", "initial_entropy_coef": 1.0, "target_entropy": "auto"}
    agent = make(env.observation_space, env.action_space, learning_rate=3e-4, **temperature, **SETTINGS, **settings)
    learn(agent, golden)
    np.testing.assert_allclose(agent.state.log_alpha.numpy(), floats(golden["after"]["log_alpha"]), atol=ROUNDING)


def test_td3_learns_the_same_from_batches() -> None:
    env, golden = SPACES["Pendulum-v1"], GOLDEN["td3"]
    td3 = make_td3(
        env.observation_space, env.action_space,
        learning_rate=1e-3, policy_delay=2, target_noise=0.2, target_noise_clip=0.5, **SETTINGS,
    )  # fmt: skip
    load_layers(td3.target_actor.mlps, [golden["before"]["target_actor"]])
    learn(td3, golden)
    assert_layers(td3.target_actor.mlps, [golden["before"]["target_actor"]], [golden["after"]["target_actor"]])
