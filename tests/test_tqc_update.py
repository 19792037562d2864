"""TQC's update: compared with the plain torch on its page, and its details one by one."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.continuous.tqc import TQC
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.networks.backend import NUMPY, Backend
from rl_training.networks.feature_extractors import to_arrays
from rl_training.networks.threads import PAYS, THREADS
from tests.docs_code import losses_of
from tests.network_parts import by_autograd, to_tensors
from tests.off_policy_parts import (
    SPACES,
    assert_gradients,
    in_arrays,
    in_float64,
    make_tqc,
    mlp,
    moves,
    random_batch,
    targets,
    wide,
)
from tests.test_sac_update import with_middle

SAC_PLAIN, PLAIN = losses_of("sac"), losses_of("tqc")
SHAPES = [{}, {"critics": 1, "quantiles": 4, "drop_quantiles": 0}, {"critics": 5, "quantiles": 7, "drop_quantiles": 6}]
"""The default, one critic without truncation, and five of whose quantiles five are left in all."""


# Against plain torch.


class Reference:
    """TQC with the pages' losses, autograd and torch's Adam."""

    def __init__(self, tqc: TQC, learning_rate: float) -> None:
        self.config, self.dims = tqc.config, tqc.action_dims
        self.actor, self.critics = (
            {name: nn.Parameter(tensor) for name, tensor in state.items()}
            for state in (tqc.policy_state(), tqc.state.critics.state_dict())
        )
        self.targets = tqc.state.targets.state_dict()
        self.log_alpha = nn.Parameter(torch.tensor([tqc.temperature.alpha]).log())
        self.adams = [
            torch.optim.Adam(p, lr=learning_rate)
            for p in (self.actor.values(), self.critics.values(), [self.log_alpha])
        ]
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(tqc.config.seed, spawn_key=(7,))))

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return mlp(self.actor, 0, obs).chunk(2, 1)

    def q(self, parameters: dict[str, torch.Tensor], obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.stack([mlp(parameters, s, torch.cat([obs, actions], 1)) for s in range(self.config.critics)], 1)

    def step(self, adam: int, loss: torch.Tensor) -> None:
        self.adams[adam].zero_grad()
        loss.backward()
        self.adams[adam].step()

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal((*shape, self.dims), dtype=np.float32))

    def update(self, batch: ReplayBatch) -> dict[str, float]:
        b = {name: torch.from_numpy(array) for name, array in vars(batch).items() if array is not None}
        next_noise, noise = self.draw(2, len(batch))
        alpha, sample = self.log_alpha.exp().item(), SAC_PLAIN.sample
        if batch.middle_obs is not None:
            noises = self.draw(*batch.middle_obs.shape[:2])
            b["rewards"] = b["rewards"] + alpha * SAC_PLAIN.middle_entropy(self.act, b, noises)
        critics, target_critics = partial(self.q, self.critics), partial(self.q, self.targets)
        _, logprobs = sample(self.act, b["obs"], noise)
        self.step(2, SAC_PLAIN.temperature_loss(self.log_alpha, logprobs, -self.dims))
        drop = self.config.drop_quantiles
        samples = PLAIN.targets(sample, self.act, target_critics, b, next_noise, alpha, drop)
        critic_loss = PLAIN.critic_loss(critics, b, samples)
        self.step(1, critic_loss)
        actor_loss = PLAIN.actor_loss(sample, self.act, critics, b, noise, alpha)
        self.step(0, actor_loss)
        for name, target in self.targets.items():
            target.mul_(1 - self.config.tau).add_(self.config.tau * self.critics[name].detach())
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item(), "entropy_coef": alpha}


@pytest.mark.parametrize("settings", [*SHAPES, {"n_step": 3, "gamma": 0.9}], ids=str)
def test_updates_equal_plain_torch(settings: dict[str, Any]) -> None:
    tqc = make_tqc(**settings, tau=0.05, seed=5, learning_rate=2e-3, learning_rate_schedule="linear")
    reference = Reference(tqc, learning_rate=2e-3)
    for step in range(4):
        batch = random_batch(moves, seed=step)
        if tqc.config.n_step > 1:
            batch = with_middle(batch, tqc.config.n_step, seed=step)
        for adam in reference.adams:
            adam.param_groups[0]["lr"] = 2e-3 * (1 - step / 8)
        expected, metrics = reference.update(batch), tqc.update(batch, progress=step / 8)
        for name, value in expected.items():
            assert metrics[f"train/{name}"] == pytest.approx(value, rel=1e-4)
    for got, wanted in (
        (tqc.policy_state(), reference.actor),
        (tqc.state.critics.state_dict(), reference.critics),
        (tqc.state.targets.state_dict(), reference.targets),
    ):
        for name, tensor in got.items():
            torch.testing.assert_close(tensor, wanted[name].detach(), rtol=0, atol=2e-5)
    assert tqc.temperature.alpha == pytest.approx(reference.log_alpha.exp().item(), rel=1e-5)


def make_double(kind: str, settings: dict[str, Any]) -> tuple[TQC, ReplayBatch, torch.Tensor]:
    """An agent in float64 whose targets differ, a batch, and noise."""
    tqc = make_tqc(SPACES[kind], **settings)
    tqc.parameters, tqc.state.critics = in_float64(tqc.actor, noise=0.02), in_float64(tqc.critics)
    tqc.state.targets = in_float64(tqc.target_critics, noise=0.4)
    noise = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tqc, wide(random_batch(moves, SPACES[kind], 7)), noise


def plain_networks(tqc: TQC) -> tuple[Any, Any, Any]:
    """Policy, critics and target critics as the page's functions take them, by autograd."""

    def act(obs: Any) -> tuple[torch.Tensor, ...]:
        return by_autograd(tqc.actor, obs)[0].chunk(2, 1)

    def q(critics: Any, obs: Any, actions: torch.Tensor) -> torch.Tensor:
        return torch.stack(by_autograd(critics, obs, actions), 1)

    return act, partial(q, tqc.critics), partial(q, tqc.target_critics)


@pytest.mark.parametrize("settings", SHAPES, ids=str)
@pytest.mark.parametrize("kind", SPACES)
def test_the_critics_gradient_equals_autograd(backend: Backend, kind: str, settings: dict[str, Any]) -> None:
    tqc, batch, noise = make_double(kind, settings)
    for _ in range(2):  # overwritten and not added to
        measured = tqc._backpropagate_critics(*in_arrays(batch, backend), backend.view(noise), 0.3)
    tensors = {name: to_tensors(array) for name, array in vars(batch).items() if array is not None}
    actor, critics, target_critics = plain_networks(tqc)
    drop = tqc.config.drop_quantiles
    samples = PLAIN.targets(SAC_PLAIN.sample, actor, target_critics, tensors, noise, 0.3, drop)
    loss = PLAIN.critic_loss(critics, tensors, samples)
    assert float(measured[0]) == pytest.approx(loss.item(), rel=1e-10)
    assert_gradients(tqc.critics, torch.autograd.grad(loss, list(tqc.critics.parameters())))


@pytest.mark.parametrize("settings", SHAPES, ids=str)
@pytest.mark.parametrize("kind", SPACES)
def test_the_policys_gradient_equals_autograd(backend: Backend, kind: str, settings: dict[str, Any]) -> None:
    tqc, batch, noise = make_double(kind, settings)
    for _ in range(2):
        measured = tqc._backpropagate_actor(to_arrays(batch.obs, backend), backend.view(noise), 0.3)
    actor, critics, _ = plain_networks(tqc)
    loss = PLAIN.actor_loss(SAC_PLAIN.sample, actor, critics, {"obs": to_tensors(batch.obs)}, noise, 0.3)
    assert float(measured[0]) == pytest.approx(loss.item(), rel=1e-10)
    assert_gradients(tqc.actor, torch.autograd.grad(loss, list(tqc.actor.parameters())))
    assert not tqc.state.critics.gradient.any()


# By hand.


def test_targets_leave_out_the_largest_quantiles_of_all_critics_together(backend: Backend) -> None:
    tqc = make_tqc(critics=2, quantiles=3, drop_quantiles=1)
    tqc.state.targets.vector.zero_()
    with torch.no_grad():
        for bias, values in zip(tqc.target_critics.mlps.head_biases, ([9.0, 1.0, 8.0], [2.0, -3.0, 5.0]), strict=True):
            bias.copy_(torch.tensor(values))
    x = np.ones((2, 3), np.float32)
    batch = ReplayBatch(x, np.zeros((2, 2), np.float32), np.float32([10, 10]), x, np.float32([0.5, 0]))
    found = backend.numpy(targets(tqc, batch, backend.array(np.zeros((2, 2), np.float32)), 0.0))
    np.testing.assert_allclose(found, [[8.5, 10.5, 11.0, 12.5], [10.0] * 4], rtol=1e-6)  # 8 and 9 are of one critic


def test_the_loss_and_its_slope_by_hand() -> None:
    """One critic with quantiles 0 and 2 at levels 1/4 and 3/4, and samples -0.5 and 3.

    Of 0: (1 - 1/4) * 0.5 * 0.25 = 0.09375 and 1/4 * 2.5 = 0.625. Of 2: 1/4 * 2 = 0.5 and 3/4 * 0.5 = 0.375.
    """
    tqc = make_tqc(critics=1, quantiles=2, drop_quantiles=0)
    loss, (slopes,) = tqc._critic_loss([np.float32([[0, 2]])], np.float32([[-0.5, 3]]))
    assert float(loss) == pytest.approx((0.09375 + 0.625 + 0.5 + 0.375) / 4)
    np.testing.assert_allclose(slopes, [[(0.75 * 0.5 - 0.25) / 4, (0.25 - 0.75) / 4]], rtol=1e-6)


def test_values_are_means_of_all_quantiles() -> None:
    tqc, batch = make_tqc(critics=3), random_batch(moves)
    values = np.concatenate(tqc.critics.evaluate(batch.obs, batch.actions), 1)
    assert values.shape == (32, 75)
    np.testing.assert_allclose(tqc.q_values(batch.obs, batch.actions), values.mean(1), rtol=1e-5, atol=1e-6)


def test_a_critic_learns_the_quantiles_of_a_known_return() -> None:
    """Rewards are uniform on [0, 8] and every step is terminal: the quantile of level p is near 8 p."""
    tqc = make_tqc(critics=1, quantiles=4, drop_quantiles=0, entropy_coef=0.0)
    rng, x = np.random.default_rng(0), np.zeros((256, 3), np.float32)
    for step in range(1_500):
        rewards = rng.uniform(0, 8, 256).astype(np.float32)
        batch = ReplayBatch(x, np.zeros((256, 2), np.float32), rewards, x, np.zeros(256, np.float32))
        tqc._backpropagate_critics(*in_arrays(batch, NUMPY), np.zeros((256, 2), np.float32), 0.0)
        rate = 0.04 * (1 - step / 1_500)
        tqc.state.critic_optimizer.step(tqc.state.critics.vector, tqc.state.critics.gradient, rate)
    (found,) = tqc.critics.evaluate(x[:1], np.zeros((1, 2), np.float32))
    # The Huber part, of width 1 on each side, moves a quantile by at most (1/2 - p): the slope's root for p is
    # q = 8 p + (1 - 2 p) / 2.
    levels = np.array([1, 3, 5, 7]) / 8
    np.testing.assert_allclose(found[0], 8 * levels + (1 - 2 * levels) / 2, atol=0.12)


def test_two_threads_update_to_the_same_bits_as_one() -> None:
    results = []
    for threads in (1, 2):
        tqc = make_tqc(network={"hidden": [64, 64]}, learning_rate=0.01, seed=3)
        with THREADS.using(threads):
            metrics = [tqc.update(random_batch(moves, count=PAYS // 64**2 + 1, seed=seed), 0.0) for seed in range(4)]
        results.append((metrics, tqc.parameters.vector.tolist(), tqc.state.critics.vector.tolist()))
    assert results[0] == results[1]
