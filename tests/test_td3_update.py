"""TD3's update: compared with the plain torch on its page, and its details one by one."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.continuous.td3 import TD3
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.envs.spaces import ActionCodec
from rl_training.networks.backend import Backend
from rl_training.networks.feature_extractors import to_arrays
from tests.docs_code import losses_of
from tests.network_parts import by_autograd, to_tensors
from tests.off_policy_parts import (
    SPACES,
    UNEQUAL,
    assert_gradients,
    in_arrays,
    in_float64,
    make_td3,
    mlp,
    moves,
    random_batch,
    targets,
    wide,
)

PLAIN = losses_of("td3")
ONE_DIM = gym.spaces.Box(-1, 1, (1,))


# Against plain torch.


class Reference:
    """TD3 with the page's losses, autograd and torch's Adam."""

    def __init__(self, td3: TD3, learning_rate: float) -> None:
        self.config, self.dims, self.updates = td3.config, td3.action_dims, 0
        self.actor, self.critics = (
            {name: nn.Parameter(tensor) for name, tensor in state.items()}
            for state in (td3.policy_state(), td3.state.critics.state_dict())
        )
        self.target_actor, self.targets = td3.policy_state(), td3.state.targets.state_dict()
        self.adams = [torch.optim.Adam(p.values(), lr=learning_rate) for p in (self.actor, self.critics)]
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(td3.config.seed, spawn_key=(7,))))

    def act(self, parameters: dict[str, torch.Tensor], obs: torch.Tensor) -> torch.Tensor:
        return mlp(parameters, 0, obs).tanh()

    def q(self, parameters: dict[str, torch.Tensor], obs: torch.Tensor, actions: torch.Tensor) -> list[torch.Tensor]:
        return [mlp(parameters, s, torch.cat([obs, actions], 1)).squeeze(1) for s in (0, 1)]

    def step(self, adam: int, loss: torch.Tensor) -> None:
        self.adams[adam].zero_grad()
        loss.backward()
        self.adams[adam].step()

    def update(self, batch: ReplayBatch) -> dict[str, float]:
        config = self.config
        b = {name: torch.from_numpy(array) for name, array in vars(batch).items() if array is not None}
        noise = torch.from_numpy(self.rng.standard_normal((len(batch), self.dims), dtype=np.float32))
        actor, critics = partial(self.act, self.actor), partial(self.q, self.critics)
        target_actor, target_critics = partial(self.act, self.target_actor), partial(self.q, self.targets)
        smoothing = config.target_noise, config.target_noise_clip
        critic_loss = PLAIN.critic_loss(target_actor, critics, target_critics, b, noise, *smoothing)
        self.step(1, critic_loss)
        self.updates += 1
        if self.updates % config.policy_delay:
            return {"critic_loss": critic_loss.item()}
        actor_loss = PLAIN.actor_loss(actor, critics, b)
        self.step(0, actor_loss)
        for own, target in ((self.critics, self.targets), (self.actor, self.target_actor)):
            for name, tensor in target.items():
                tensor.mul_(1 - config.tau).add_(config.tau * own[name].detach())
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item()}


@pytest.mark.parametrize(
    "settings",
    [{}, {"policy_delay": 1, "target_noise": 0.0}, {"policy_delay": 3, "target_noise": 2.0, "target_noise_clip": 0.3}],
    ids=str,
)
def test_updates_equal_plain_torch(settings: dict[str, Any]) -> None:
    td3 = make_td3(**settings, tau=0.05, seed=5, learning_rate=2e-3, learning_rate_schedule="linear")
    reference = Reference(td3, learning_rate=2e-3)
    for step in range(7):
        for adam in reference.adams:
            adam.param_groups[0]["lr"] = 2e-3 * (1 - step / 8)
        batch = random_batch(moves, seed=step)
        expected, metrics = reference.update(batch), td3.update(batch, progress=step / 8)
        assert ("train/actor_loss" in metrics) == ("actor_loss" in expected)
        for name, value in expected.items():
            assert metrics[f"train/{name}"] == pytest.approx(value, rel=1e-4)
        assert metrics["train/learning_rate"] == pytest.approx(2e-3 * (1 - step / 8))
    for got, wanted in (
        (td3.policy_state(), reference.actor),
        (td3.state.critics.state_dict(), reference.critics),
        (td3.state.targets.state_dict(), reference.targets),
        (td3.state.target_policy.state_dict(), reference.target_actor),
    ):
        for name, tensor in got.items():
            torch.testing.assert_close(tensor, wanted[name].detach(), rtol=0, atol=1e-5)


def make_double(kind: str, count: int) -> tuple[TD3, ReplayBatch, torch.Tensor]:
    """An agent in float64 whose targets differ, a batch, and noise."""
    td3 = make_td3(SPACES[kind], target_noise=0.8)
    td3.parameters, td3.state.critics = in_float64(td3.actor), in_float64(td3.critics)
    td3.state.targets = in_float64(td3.target_critics, noise=0.3)
    td3.state.target_policy = in_float64(td3.target_actor, noise=0.3)
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return td3, wide(random_batch(moves, SPACES[kind], count)), noise


def act(actor: Any, obs: Any) -> torch.Tensor:
    return by_autograd(actor, obs)[0].tanh()


def q(critics: Any, obs: Any, actions: torch.Tensor) -> list[torch.Tensor]:
    return [values.squeeze(1) for values in by_autograd(critics, obs, actions)]


@pytest.mark.parametrize("kind", SPACES)
def test_the_critics_gradient_equals_autograd(backend: Backend, kind: str) -> None:
    td3, batch, noise = make_double(kind, 7)
    for _ in range(2):  # overwritten and not added to
        td3._backpropagate_critics(*in_arrays(batch, backend), backend.view(noise))
    tensors = {name: to_tensors(array) for name, array in vars(batch).items() if array is not None}
    networks = partial(act, td3.target_actor), partial(q, td3.critics), partial(q, td3.target_critics)
    loss = PLAIN.critic_loss(*networks, tensors, noise, 0.8, 0.5)
    assert_gradients(td3.critics, torch.autograd.grad(loss, list(td3.critics.parameters())))


@pytest.mark.parametrize("kind", SPACES)
def test_the_policys_gradient_equals_autograd_and_leaves_the_critics_be(backend: Backend, kind: str) -> None:
    td3, batch, _ = make_double(kind, 7)
    for _ in range(2):
        measured = td3._backpropagate_actor(to_arrays(batch.obs, backend))
    loss = PLAIN.actor_loss(partial(act, td3.actor), partial(q, td3.critics), {"obs": to_tensors(batch.obs)})
    assert float(measured[0]) == pytest.approx(loss.item(), rel=1e-12)
    assert_gradients(td3.actor, torch.autograd.grad(loss, list(td3.actor.parameters())))
    assert not td3.state.critics.gradient.any()


# By hand.


def test_the_targets_take_the_smaller_value_at_the_target_policys_noisy_action() -> None:
    """Target critics of a + 1 and 3 a - 1 for one action dim, a target policy of tanh(0.5) = 0.4621."""
    td3 = make_td3(action_space=ONE_DIM, network={"hidden": []}, target_noise=0.2, target_noise_clip=0.3)
    td3.state.targets.vector.zero_()
    td3.state.target_policy.vector.zero_()
    with torch.no_grad():
        td3.target_actor.mlps.head_biases[0].fill_(0.5)
        for s, (slope, offset) in enumerate([(1.0, 1.0), (3.0, -1.0)]):
            td3.target_critics.mlps.head_weights[s][3] = slope
            td3.target_critics.mlps.head_biases[s].fill_(offset)
    rewards, discounts = np.float32([0, 5, 5, 5, 5]), np.float32([1, 0.9, 0.9, 0.9, 0])
    x = np.ones((5, 3), np.float32)
    noise = np.float32([[0], [1], [9], [-9], [1]])  # times 0.2, clipped to 0.3
    got = targets(td3, ReplayBatch(x, moves(td3.replay_rng, 5)[:, :1], rewards, x, discounts), noise)
    values = [min(a + 1, 3 * a - 1) for a in (0.46211716, 0.66211716, 0.76211716, 0.16211716)]
    expected = [values[0], *(5 + 0.9 * value for value in values[1:]), 5.0]
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-6)
    td3.target_actor.mlps.head_biases[0].data.fill_(9.0)  # an action of 1, which noise does not raise
    got = targets(td3, ReplayBatch(x, moves(td3.replay_rng, 5)[:, :1], rewards, x, discounts), noise)
    np.testing.assert_allclose(got[:3, 0], [2.0, 5 + 0.9 * 2.0, 5 + 0.9 * 2.0], rtol=1e-6)


def test_policy_and_targets_rest_between_the_policys_steps() -> None:
    td3 = make_td3(policy_delay=3, tau=0.25, learning_rate=0.01)
    moved = []
    for step in range(7):
        old = [v.clone() for v in (td3.parameters.vector, td3.state.targets.vector, td3.state.target_policy.vector)]
        metrics = td3.update(random_batch(moves, seed=step), 0.0)
        new = [td3.parameters.vector, td3.state.targets.vector, td3.state.target_policy.vector]
        moved.append([not torch.equal(now, then) for now, then in zip(new, old, strict=True)])
        if "train/actor_loss" in metrics:
            for now, then, source in ((new[1], old[1], td3.state.critics.vector), (new[2], old[2], new[0])):
                torch.testing.assert_close(now, 0.75 * then + 0.25 * source, rtol=0, atol=1e-6)
    assert moved == [[step in (2, 5)] * 3 for step in range(7)]
    assert (td3.state.critic_optimizer.steps, td3.state.actor_optimizer.steps) == (7, 2)


def test_the_target_policy_starts_as_a_copy() -> None:
    td3 = make_td3(seed=3)
    assert torch.equal(td3.state.target_policy.vector, td3.parameters.vector)
    assert td3.state.target_policy.vector.data_ptr() != td3.parameters.vector.data_ptr()


def test_metrics_are_those_of_the_steps_that_were_taken() -> None:
    td3 = make_td3()
    critics = {f"train/{name}" for name in ("critic_loss", "q_mean", "gradient_norm", "learning_rate")}
    assert set(td3.update(random_batch(moves), 0.0)) == critics
    assert set(td3.update(random_batch(moves), 0.0)) == critics | {"train/actor_loss", "train/actor_gradient_norm"}


# Acting.


@pytest.mark.parametrize("deviation", [0.1, 0.0])
def test_acting_adds_noise_to_the_greedy_action_and_stays_in_bounds(deviation: float) -> None:
    td3 = make_td3(action_space=UNEQUAL, exploration_noise=deviation)
    with torch.no_grad():
        td3.actor.mlps.head_biases[0].copy_(torch.tensor([0.5, 2.5]))
    observations = np.zeros((20_000, 3), np.float32)
    greedy, actions = td3.act_greedy(observations), td3.act(observations, 0)
    np.testing.assert_allclose(greedy[0], np.tanh([0.5, 2.5]), atol=1e-6)
    assert (actions.dtype, actions.shape) == (np.float32, (20_000, 2))
    np.testing.assert_allclose(actions[:, 0].mean(), np.tanh(0.5), atol=0.003)
    np.testing.assert_allclose(actions[:, 0].std(), deviation, atol=0.002)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03 if deviation else np.array_equal(actions, greedy)
    # Normal noise of 0.1 carries tanh(2.5) = 0.987 beyond 1 in 44.7 % of draws.
    assert (actions[:, 1] == 1.0).mean() == pytest.approx(0.447 if deviation else 0.0, abs=0.015)
    assert np.abs(actions).max() <= 1.0
    assert all(UNEQUAL.contains(action) for action in ActionCodec(UNEQUAL, scaled=True).to_env(actions[:50]))
