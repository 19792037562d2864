"""SAC's update: compared with the plain torch on its page, its details one by one, and what it learns and refuses."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.continuous.sac import SAC, check_spaces
from rl_training.algorithms.continuous.soft_returns import draw_middle
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import CheckpointError, NumericError
from rl_training.networks import squashed_gaussian
from rl_training.networks.backend import Backend
from rl_training.networks.feature_extractors import to_arrays
from tests.docs_code import losses_of
from tests.network_parts import BACKENDS, by_autograd, to_tensors
from tests.off_policy_parts import (
    CAMERA,
    OBSERVATIONS,
    SPACES,
    TEN_STEP_VALUES,
    UNEQUAL,
    VECTOR,
    assert_gradients,
    in_arrays,
    in_float64,
    live_ten_steps,
    make_sac,
    mlp,
    moves,
    random_batch,
    solve_contexts,
    targets,
    ten_steps,
    through_a_file,
    wide,
)

NUMPY = BACKENDS["numpy"]
PLAIN = losses_of("sac")


# Against plain torch.


class Reference:
    """SAC with the page's losses, autograd and torch's Adam."""

    def __init__(self, sac: SAC, learning_rate: float) -> None:
        self.config, self.dims = sac.config, sac.action_dims
        self.actor, self.critics = (
            {name: nn.Parameter(tensor) for name, tensor in state.items()}
            for state in (sac.policy_state(), sac.state.critics.state_dict())
        )
        self.targets = sac.state.targets.state_dict()
        self.log_alpha = nn.Parameter(torch.tensor([sac.temperature.alpha]).log())
        self.adams = [
            torch.optim.Adam(p, lr=learning_rate)
            for p in (self.actor.values(), self.critics.values(), [self.log_alpha])
        ]
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(sac.config.seed, spawn_key=(7,))))

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return mlp(self.actor, 0, obs).chunk(2, 1)

    def q(self, parameters: dict[str, torch.Tensor], obs: torch.Tensor, actions: torch.Tensor) -> list[torch.Tensor]:
        return [mlp(parameters, s, torch.cat([obs, actions], 1)).squeeze(1) for s in (0, 1)]

    def step(self, adam: int, loss: torch.Tensor) -> None:
        self.adams[adam].zero_grad()
        loss.backward()
        self.adams[adam].step()

    def update(self, batch: ReplayBatch) -> dict[str, float]:
        b = {name: torch.from_numpy(array) for name, array in vars(batch).items() if array is not None}
        next_noise, noise = torch.from_numpy(
            self.rng.standard_normal((2, len(batch), self.dims), dtype=np.float32)
        )  # fmt: skip
        alpha = self.log_alpha.exp().item()
        if batch.middle_obs is not None:
            shape = (*batch.middle_obs.shape[:2], self.dims)
            noises = torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32))
            b["rewards"] = b["rewards"] + alpha * PLAIN.middle_entropy(self.act, b, noises)
        critics, target_critics = partial(self.q, self.critics), partial(self.q, self.targets)
        if self.config.entropy_coef == "auto":
            target_entropy = -self.dims if self.config.target_entropy == "auto" else self.config.target_entropy
            _, logprobs = PLAIN.sample(self.act, b["obs"], noise)
            self.step(2, PLAIN.temperature_loss(self.log_alpha, logprobs, target_entropy))
        critic_loss = PLAIN.critic_loss(self.act, critics, target_critics, b, next_noise, alpha)
        self.step(1, critic_loss)
        actor_loss = PLAIN.actor_loss(self.act, critics, b, noise, alpha)
        self.step(0, actor_loss)
        for name, target in self.targets.items():
            target.mul_(1 - self.config.tau).add_(self.config.tau * self.critics[name].detach())
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item(), "entropy_coef": alpha}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"initial_entropy_coef": 0.3, "target_entropy": -0.5},
        {"entropy_coef": 0.2},
        {"entropy_coef": 0.0, "tau": 1.0},
        {"n_step": 3, "gamma": 0.9},
    ],
    ids=str,
)
def test_updates_equal_plain_torch(backend: Backend, settings: dict[str, Any]) -> None:
    sac = make_sac(**{"tau": 0.05, **settings}, seed=5, learning_rate=2e-3, learning_rate_schedule="linear")
    reference = Reference(sac, learning_rate=2e-3)
    for step in range(4):
        batch = random_batch(moves, seed=step)
        if sac.config.n_step > 1:
            batch = with_middle(batch, sac.config.n_step, seed=step)
        for adam in reference.adams:
            adam.param_groups[0]["lr"] = 2e-3 * (1 - step / 8)
        expected = reference.update(batch)
        metrics = sac.update(batch, progress=step / 8)
        for name, value in expected.items():
            assert metrics[f"train/{name}"] == pytest.approx(value, rel=1e-4)
        assert metrics["train/learning_rate"] == pytest.approx(2e-3 * (1 - step / 8))
    for got, wanted in (
        (sac.policy_state(), reference.actor),
        (sac.state.critics.state_dict(), reference.critics),
        (sac.state.targets.state_dict(), reference.targets),
    ):
        for name, tensor in got.items():
            torch.testing.assert_close(tensor, wanted[name].detach(), rtol=0, atol=1e-5)
    assert sac.temperature.alpha == pytest.approx(reference.log_alpha.exp().item(), rel=1e-5)


def with_middle(batch: ReplayBatch, n_step: int, seed: int) -> ReplayBatch:
    """The batch as one of transitions of up to so many steps, with random observations between them."""
    rng, shape = np.random.default_rng(seed), (n_step - 1, len(batch))
    steps = rng.integers(1, n_step + 1, len(batch))
    powers = 0.9 ** np.arange(1, n_step)[:, None]
    discounts = np.where(np.arange(1, n_step)[:, None] < steps, powers, 0.0).astype(np.float32)
    observations = rng.standard_normal((*shape, *batch.obs.shape[1:])).astype(np.float32)
    return replace(batch, middle_obs=observations, middle_discounts=discounts)


@pytest.mark.parametrize(
    ("last", "reward", "weight"),
    [
        # Rewards of 1, gamma .5. The entropies after 1, 2 and 3 steps have the weights .5, .25 and .125.
        pytest.param(None, 1 + 0.5 + 0.25, 0.5 + 0.25 + 0.125, id="three steps and the value after them"),
        pytest.param(1, 1 + 0.5, 0.5, id="two steps that end, and the entropy between them"),
        pytest.param(0, 1, 0, id="one step that ends"),
    ],
)
def test_targets_of_three_steps_by_hand(backend: Backend, last: int | None, reward: float, weight: float) -> None:
    """Critics of 0 and a policy of two standard normal dims, squashed: the mean over many draws of its actions."""
    sac = make_sac(n_step=3, gamma=0.5)
    for vector in (sac.parameters.vector, sac.state.targets.vector):
        vector.zero_()
    floats = np.dtype(np.float32)
    buffer = ReplayBuffer(3, 1, (3,), floats, (2,), floats, n_step=3, gamma=0.5, returns_middle=True)
    for step in range(3):
        terminated = np.array([step == last])
        buffer.add(np.full((1, 3), step), np.zeros((1, 2)), np.ones(1), np.ones((1, 3)), terminated, np.zeros(1, bool))
    drawn = buffer.sample(60_000, np.random.default_rng(0))
    _, next_observations, _, rewards, discounts = in_arrays(drawn, backend)
    noise = backend.array(np.random.default_rng(1).standard_normal((len(drawn), 2), dtype=np.float32))
    middle = draw_middle(drawn, 2, np.random.default_rng(2), backend)
    found = backend.numpy(sac._targets(next_observations, rewards, discounts, noise, 1.0, *middle))[:, 0]
    u = np.linspace(-12, 12, 200_001)
    density = np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    entropy = -2 * np.trapezoid(density * (np.log(density) - np.log1p(-np.square(np.tanh(u)) * (1 - 1e-15))), u)
    assert found[drawn.obs[:, 0] == 0].mean() == pytest.approx(reward + weight * entropy, abs=0.02)


def make_double(space: gym.Space, count: int) -> tuple[SAC, ReplayBatch, torch.Tensor]:
    """An agent in float64, a batch, and noise."""
    sac = make_sac(space)
    sac.parameters, sac.state.critics = in_float64(sac.actor, noise=0.02), in_float64(sac.critics)
    sac.state.targets = in_float64(sac.target_critics)
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return sac, wide(random_batch(moves, space, count)), noise


def plain_networks(sac: SAC) -> tuple[Any, Any, Any]:
    """Policy, critics and target critics as the page's functions take them, by autograd."""

    def act(obs: Any) -> tuple[torch.Tensor, ...]:
        return by_autograd(sac.actor, obs)[0].chunk(2, 1)

    def q(critics: Any, obs: Any, actions: torch.Tensor) -> list[torch.Tensor]:
        return [values.squeeze(1) for values in by_autograd(critics, obs, actions)]

    return act, partial(q, sac.critics), partial(q, sac.target_critics)


@pytest.mark.parametrize("kind", SPACES)
def test_the_critics_gradient_equals_autograd(backend: Backend, kind: str) -> None:
    sac, batch, noise = make_double(SPACES[kind], 7)
    for _ in range(2):  # overwritten and not added to
        sac._backpropagate_critics(*in_arrays(batch, backend), backend.view(noise), 0.3)
    tensors = {name: to_tensors(array) for name, array in vars(batch).items() if array is not None}
    loss = PLAIN.critic_loss(*plain_networks(sac), tensors, noise, 0.3)
    expected = torch.autograd.grad(loss, list(sac.critics.parameters()))
    assert_gradients(sac.critics, expected)


@pytest.mark.parametrize("kind", SPACES)
def test_the_policys_gradient_equals_autograd_and_leaves_the_critics_be(backend: Backend, kind: str) -> None:
    sac, batch, noise = make_double(SPACES[kind], 7)
    arrays = to_arrays(batch.obs, backend)
    raw = backend.tensor(sac.actor(arrays)[0])[:, 3]
    with torch.no_grad():
        sac.actor.mlps.head_biases[0][3] += 2.0 - raw.median()  # a log deviation is cut in some of the states
    for _ in range(2):
        sac._backpropagate_actor(arrays, backend.view(noise), 0.3)
    sample = squashed_gaussian.sample(sac.actor.evaluate(arrays)[0], backend.view(noise), backend)
    assert 0 < int((sample.free_BA == 0).sum()) < 7 * 2
    assert not sac.state.critics.gradient.any()

    actor, critics, _ = plain_networks(sac)
    loss = PLAIN.actor_loss(actor, critics, {"obs": to_tensors(batch.obs)}, noise, 0.3)
    expected = torch.autograd.grad(loss, list(sac.actor.parameters()))
    assert_gradients(sac.actor, expected)


def test_metrics_by_hand() -> None:
    sac = make_sac(tau=0.5)
    batch = random_batch(moves)
    metrics = sac.update(batch, 0.0)
    names = (
        "critic_loss", "actor_loss", "q_mean", "entropy", "entropy_coef", "entropy_coef_loss", "gradient_norm",
        "actor_gradient_norm", "learning_rate",
    )  # fmt: skip
    assert set(metrics) == {f"train/{name}" for name in names}
    assert metrics["train/entropy_coef"] == 1.0
    assert metrics["train/entropy_coef_loss"] == 0.0  # -log(1) times anything
    # The first policy: two dims of tanh of a standard normal; the entropy is 0.68 a dim, by numerical integration.
    u = np.linspace(-12, 12, 200_001)
    density = np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    slope = np.log1p(-np.square(np.tanh(u)) * (1 - 1e-15))
    entropy = -np.trapezoid(density * (np.log(density) - slope), u)
    many = make_sac().update(random_batch(moves, count=20_000), 0.0)
    assert many["train/entropy"] == pytest.approx(2 * entropy, abs=0.03)


# The squashed Gaussian.


def test_the_page_samples_from_torchs_transformed_distribution() -> None:
    means, log_stds, noise = 0.5 * torch.randn(
        3, 50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    actions, logprobs = PLAIN.sample(lambda obs: (means, log_stds), None, noise)
    normal = torch.distributions.Normal(means, log_stds.exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    torch.testing.assert_close(logprobs, squashed.log_prob(actions).sum(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(actions, torch.tanh(means + log_stds.exp() * noise), rtol=1e-12, atol=0)


@pytest.mark.parametrize("u", [0.0, 1e-4, 0.5, -2.0, 9.0, -30.0, 80.0, -1e4, 1e30])
def test_the_log_slope_of_tanh_is_exact_at_extremes(u: float) -> None:
    expected = -2 * (abs(u) + math.log1p(math.exp(-2 * abs(u))) - math.log(2))  # -2 log cosh u
    assert float(squashed_gaussian.log_slope(np, np.float32(u))) == pytest.approx(expected, rel=1e-6, abs=3e-7)
    assert float(squashed_gaussian.log_slope(np, np.float64(u))) == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_the_log_prob_against_closed_form_where_the_action_is_one() -> None:
    outputs = np.float32([[40.0, -1.0, 0.0, -9.0]])  # means 40 and -1, log deviations 0 and -9
    sample = squashed_gaussian.sample(outputs, np.float32([[1.5, -2.0]]), NUMPY)
    assert sample.actions_BA[0, 0] == 1.0  # naively, log(1 - 1) would be minus infinity
    u = -1 - 2 * math.exp(-9)
    gaussian = -0.5 * (1.5**2 + 2.0**2) + 9.0 - math.log(2 * math.pi)
    slopes = -2 * (41.5 - math.log(2)) + math.log(1 - math.tanh(u) ** 2)
    assert float(sample.logprobs_B[0]) == pytest.approx(gaussian - slopes, rel=1e-6)
    gradient = sample.backward(np.ones((1, 2), np.float32), 1.0, np)
    assert np.isfinite(gradient).all()
    assert gradient[0, 0] == 2.0  # d log p / du = 2 a, and the action has no slope left


def test_the_density_integrates_to_one() -> None:
    actions = np.linspace(-1, 1, 400_003)[1:-1]
    draws = np.arctanh(actions)
    outputs, noise = np.tile([0.4, -0.7], (len(draws), 1)), ((draws - 0.4) / math.exp(-0.7))[:, None]
    sample = squashed_gaussian.sample(outputs, noise, NUMPY)
    np.testing.assert_allclose(sample.actions_BA[:, 0], actions, atol=1e-12)
    assert np.trapezoid(np.exp(sample.logprobs_B), actions) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("raw", "used"), [(-30.0, -20.0), (-20.0, -20.0), (0.5, 0.5), (2.0, 2.0), (7.0, 2.0)])
def test_the_log_deviation_is_cut_and_has_no_gradient_beyond(raw: float, used: float) -> None:
    sample = squashed_gaussian.sample(np.float32([[0.0, raw]]), np.float32([[0.1]]), NUMPY)
    assert float(sample.actions_BA[0, 0]) == pytest.approx(math.tanh(0.1 * math.exp(used)), rel=1e-5)
    gradient = sample.backward(np.float32([[1.0]]), 1.0, np)
    assert (float(gradient[0, 1]) == 0.0) == (raw != used)
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    drawn = squashed_gaussian.draw(np.float32([[0.0, raw]]), rng)
    noise = again.standard_normal((1, 1), dtype=np.float32)
    np.testing.assert_allclose(drawn, np.tanh(math.exp(used) * noise), rtol=1e-6)


# Temperature.


@pytest.mark.parametrize(
    ("dims", "settings", "expected"), [(6, {}, -6.0), (1, {}, -1.0), (6, {"target_entropy": -2.5}, -2.5)]
)
def test_the_target_entropy_is_minus_the_dims(dims: int, settings: dict[str, Any], expected: float) -> None:
    sac = make_sac(action_space=gym.spaces.Box(-1, 1, (dims,)), **settings)
    assert sac.temperature.target_entropy == expected
    assert make_sac(action_space=gym.spaces.Box(-1, 1, (2, 3))).temperature.target_entropy == -6.0


@pytest.mark.parametrize(("target_entropy", "direction"), [(-10.0, -1), (10.0, 1)])
def test_the_temperature_falls_where_entropy_is_ample_and_rises_where_it_lacks(
    target_entropy: float, direction: int
) -> None:
    sac = make_sac(target_entropy=target_entropy, learning_rate=0.01, initial_entropy_coef=0.5)
    first = sac.update(random_batch(moves), 0.0)
    assert first["train/entropy_coef"] == pytest.approx(0.5)
    error = -first["train/entropy"] + target_entropy
    assert first["train/entropy_coef_loss"] == pytest.approx(-math.log(0.5) * error)
    second = sac.update(random_batch(moves), 0.0)
    # Adam's first step moves log alpha by the learning rate.
    assert math.log(second["train/entropy_coef"] / 0.5) == pytest.approx(direction * 0.01, rel=1e-4)


@pytest.mark.parametrize("alpha", [0.1, 0.0])
def test_a_fixed_temperature_stays(alpha: float) -> None:
    sac = make_sac(entropy_coef=alpha)
    for step in range(3):
        metrics = sac.update(random_batch(moves, seed=step), 0.0)
        assert "train/entropy_coef_loss" not in metrics
        assert metrics["train/entropy_coef"] == pytest.approx(alpha, rel=1e-15)


# Targets.


def constant(sac: SAC, first: float, second: float) -> None:
    """Target critics that value everything the same, and a policy that hardly varies."""
    sac.state.targets.vector.zero_()
    with torch.no_grad():
        sac.target_critics.mlps.head_biases[0].fill_(first)
        sac.target_critics.mlps.head_biases[1].fill_(second)


@pytest.mark.parametrize(
    ("terminated", "truncated", "has_next"),
    [(False, False, True), (True, False, False), (False, True, True), (True, True, False)],
)
def test_only_a_terminated_transition_has_no_next_value(terminated: bool, truncated: bool, has_next: bool) -> None:
    sac = make_sac()
    constant(sac, 7.0, 9.0)
    buffer = ReplayBuffer(4, 1, (3,), np.dtype(np.float32), (2,), np.dtype(np.float32), gamma=0.9)
    x = np.ones((1, 3), np.float32)
    buffer.add(x, moves(sac.replay_rng, 1), np.array([5.0]), x, np.array([terminated]), np.array([truncated]))
    noise = np.zeros((2, 2), np.float32)
    got = targets(sac, buffer.sample(2, sac.replay_rng), noise, 0.5)
    sample = squashed_gaussian.sample(sac.actor.evaluate(np.ones((2, 3), np.float32))[0], noise, NUMPY)
    soft_value = 7.0 - 0.5 * sample.logprobs_B  # the smaller of the two, and the entropy
    np.testing.assert_allclose(got[:, 0], 5.0 + 0.9 * soft_value if has_next else [5.0, 5.0], rtol=1e-6)


def test_the_targets_follow_by_tau_after_the_critics_step() -> None:
    sac = make_sac(tau=0.25, learning_rate=0.01)
    assert torch.equal(sac.state.targets.vector, sac.state.critics.vector)
    for step in range(3):
        old = sac.state.targets.vector.clone()
        sac.update(random_batch(moves, seed=step), 0.0)
        expected = 0.75 * old + 0.25 * sac.state.critics.vector
        torch.testing.assert_close(sac.state.targets.vector, expected, rtol=0, atol=1e-6)
        assert not torch.equal(sac.state.targets.vector, old)


def test_the_critics_are_two() -> None:
    sac = make_sac()
    state = sac.state.critics.state_dict()
    assert not torch.equal(state["mlps.weights.0"][0], state["mlps.weights.0"][1])
    batch = random_batch(moves)
    first, second = sac.critics.evaluate(batch.obs, batch.actions)
    assert not np.array_equal(first, second)
    expected = np.minimum(first, second)[:, 0]
    np.testing.assert_array_equal(sac.q_values(batch.obs, batch.actions), expected)


# Acting.


def test_warm_up_is_uniform_on_the_policys_own_scale() -> None:
    sac = make_sac(action_space=UNEQUAL, learning_starts=100)
    actions = sac.act(np.zeros((4_000, 3), np.float32), 99)
    assert (actions.dtype, actions.shape) == (np.float32, (4_000, 2))
    for dim in range(2):
        shares = np.histogram(actions[:, dim], 4, (-1, 1))[0] / 4_000
        np.testing.assert_allclose(shares, 0.25, atol=0.03)
    sent = ActionCodec(UNEQUAL, scaled=True).to_env(actions)
    np.testing.assert_allclose(sent.mean(0), [2.5, 0.0], atol=0.1)
    assert all(UNEQUAL.contains(action) for action in sent)


def test_a_warm_up_action_is_held_for_as_many_steps_as_asked() -> None:
    sac = make_sac(learning_starts=12, warmup_hold=3, num_envs=2)
    actions = [sac.act(np.zeros((2, 3), np.float32), num_timesteps) for num_timesteps in range(0, 14, 2)]
    for step in (1, 2):
        np.testing.assert_array_equal(actions[step], actions[0])
    for step in (4, 5):
        np.testing.assert_array_equal(actions[step], actions[3])
    assert len({float(value) for step in (0, 3, 6) for value in actions[step].ravel()}) == 3 * 2 * 2  # each its own


def test_acting_draws_from_the_policy_and_greedy_takes_tanh_of_its_mean() -> None:
    sac = make_sac()
    with torch.no_grad():
        sac.actor.mlps.head_biases[0].copy_(torch.tensor([0.5, -0.3, -1.0, -3.0]))
    observations = np.zeros((4_000, 3), np.float32)
    np.testing.assert_allclose(sac.act_greedy(observations)[0], np.tanh([0.5, -0.3]), atol=1e-6)
    draws = np.arctanh(sac.act(observations, 0).astype(np.float64))
    np.testing.assert_allclose(draws.mean(0), [0.5, -0.3], atol=0.03)
    np.testing.assert_allclose(draws.std(0), np.exp([-1.0, -3.0]), rtol=0.05)


def test_looking_at_values_or_greedy_actions_changes_no_draw() -> None:
    observations = np.ones((4, 3), np.float32)
    quiet, looking = make_sac(), make_sac()
    looking.act_greedy(observations)
    looking.q_values(observations, np.zeros((4, 2), np.float32))
    looking.update(random_batch(moves), 0.0)  # has a stream of its own
    quiet.update(random_batch(moves), 0.0)
    np.testing.assert_array_equal(quiet.act(observations, 0), looking.act(observations, 0))


def test_updates_take_nothing_from_the_stream_of_actions() -> None:
    sac, idle = make_sac(), make_sac()
    sac.update(random_batch(moves), 0.0)
    assert str(sac.state.action_rng.bit_generator.state) == str(idle.state.action_rng.bit_generator.state)
    assert str(sac.replay_rng.bit_generator.state) == str(idle.replay_rng.bit_generator.state)


# Learning.


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("vector", 300),
        ("discrete", 300),
        ("dict", 300),
        pytest.param("image", 200, marks=pytest.mark.slow),
        pytest.param("mixed", 250, marks=pytest.mark.slow),
    ],
)
def test_the_best_action_is_learnt_in_the_environments_units(kind: str, steps: int) -> None:
    settings = {"seed": 2, "learning_rate": 3e-3, "entropy_coef": 0.05, "network": {"hidden": [64, 64]}}
    sac = make_sac(OBSERVATIONS[kind][0], UNEQUAL, **settings)
    codec = ActionCodec(UNEQUAL, scaled=True)
    best = np.array([[4.0, 0.6], [1.0, -0.5], [2.5, 0.0]])
    size = np.array([5.0, math.pi / 2])
    observations = solve_contexts(
        sac, kind, lambda c, a: -4 * np.square((codec.to_env(a) - best[c]) / size).sum(1), steps, 64
    )
    np.testing.assert_allclose(codec.to_env(sac.act_greedy(observations)) / size, best / size, atol=0.1)


@pytest.mark.parametrize(("ends", "first", "last"), TEN_STEP_VALUES)
def test_values_of_episodes_of_ten_steps(ends: str, first: float, last: float) -> None:
    sac = make_sac(
        gym.spaces.Box(0, 1, (2,)), gym.spaces.Box(-1, 1, (1,)), gamma=0.9, learning_rate=0.01, tau=0.05,
        learning_rate_schedule="linear", entropy_coef=0.0, network={"hidden": [32, 32]},
    )  # fmt: skip
    live_ten_steps(sac, ends, 2_000, lambda done: None)
    learnt = sac.q_values(ten_steps(np.array([0, 9]), ends), np.zeros((2, 1), np.float32))
    np.testing.assert_allclose(learnt, [first, last], rtol=0.05)


# State.


def bits(sac: SAC) -> tuple[Any, ...]:
    state, alpha = sac.state, sac.temperature
    adams = [adam for adam in (state.actor_optimizer, state.critic_optimizer, alpha.optimizer) if adam is not None]
    vectors = [sac.parameters.vector, state.critics.vector, state.targets.vector, alpha.log_alpha]
    vectors += [vector for adam in adams for vector in (adam.mean, adam.square)]
    generators = (state.action_rng, state.replay_rng, state.noise_rng)
    return (
        *(v.numpy().tobytes() for v in vectors),
        *(adam.steps for adam in adams),
        *(str(g.bit_generator.state) for g in generators),
    )


def live_on(sac: SAC, first: int) -> list[dict[str, float]]:
    metrics = []
    for step in range(first, first + 5):
        sac.act(random_batch(moves, seed=step).obs, step)
        sac.replay_rng.integers(10)
        metrics.append(sac.update(random_batch(moves, seed=step), step / 20))
    return metrics


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.1}], ids=["learned", "fixed"])
def test_a_new_object_continues_with_the_same_bits(settings: dict[str, Any]) -> None:
    settings = {**settings, "seed": 4, "learning_rate": 0.01, "learning_rate_schedule": "linear"}
    whole, part, again = (make_sac(**settings) for _ in range(3))
    for sac in (whole, part):
        live_on(sac, 0)
    again.load_policy_state(through_a_file(part.policy_state()))
    again.load_state_dict(through_a_file(part.state_dict()))
    assert bits(again) == bits(part)
    assert live_on(whole, 5) == live_on(again, 5)
    assert bits(whole) == bits(again)
    assert again.state.critic_optimizer.steps == 10


def test_log_alpha_and_its_optimiser_are_restored() -> None:
    sac, again = make_sac(learning_rate=0.01), make_sac(learning_rate=0.01)
    live_on(sac, 0)
    assert sac.temperature.alpha < 0.97
    again.load_state_dict(through_a_file(sac.state_dict()))
    assert again.temperature.alpha == sac.temperature.alpha
    optimizer = again.temperature.optimizer
    assert optimizer is not None
    assert optimizer.steps == 5
    assert float(optimizer.mean) != 0.0


def test_a_saved_state_does_not_change_with_the_agent() -> None:
    sac = make_sac()
    saved = sac.state_dict()
    kept = through_a_file(saved)
    live_on(sac, 0)
    for name in ("critics", "targets"):
        assert all(torch.equal(saved[name][key], kept[name][key]) for key in kept[name])
    assert torch.equal(saved["log_alpha"], kept["log_alpha"])
    assert saved["noise_rng"] == kept["noise_rng"]


def test_weights_of_another_network_are_refused() -> None:
    small, large = make_sac(), make_sac(network={"hidden": [8, 8]})
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_policy_state(large.policy_state())
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_state_dict(large.state_dict())


def test_the_seed_decides() -> None:
    first, same, other = (make_sac(seed=seed) for seed in (1, 1, 2))
    for sac in (first, same, other):
        live_on(sac, 0)
    assert bits(first) == bits(same)
    assert not torch.equal(first.parameters.vector, other.parameters.vector)


# Refusals.


def spoil_weight(network: str, value: float) -> Any:
    def spoil(sac: SAC, batch: ReplayBatch) -> None:
        with torch.no_grad():
            getattr(sac, network).mlps.weights[1][0, 2, 3] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda sac, batch: batch.rewards.fill(np.inf), "replayed rewards is not finite"),
        (lambda sac, batch: batch.obs.fill(np.nan), "replayed obs is not finite"),
        (spoil_weight("actor", np.nan), r"weight mlps\.weights\.1 of the policy is not finite"),
        (spoil_weight("critics", np.nan), r"weight mlps\.weights\.1 of the critics is not finite"),
        (spoil_weight("target_critics", np.nan), r"weight mlps\.weights\.1 of the target critics is not finite"),
        (lambda sac, batch: batch.rewards.fill(1e30), r"critic_loss is not finite \(critic_loss inf\)"),
    ],
)
def test_what_is_not_finite_is_named_and_the_weights_stay(spoil: Any, named: str) -> None:
    sac, batch = make_sac(), random_batch(moves)
    spoil(sac, batch)
    before = sac.parameters.vector.clone(), sac.state.critics.vector.clone()
    with pytest.raises(NumericError, match=named):
        sac.update(batch, 0.0)
    for now, then in zip((sac.parameters.vector, sac.state.critics.vector), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("space", [UNEQUAL, gym.spaces.Box(-1, 1, (2, 3)), gym.spaces.Box(0, 9, (1,), np.int32)])
def test_spaces_that_sac_trains_on(space: gym.Space) -> None:
    assert check_spaces(VECTOR, space) == []
    assert check_spaces(CAMERA, space) == []


@pytest.mark.parametrize(
    ("space", "would_do"),
    [
        (gym.spaces.Discrete(2), "ppo and dqn can train on it"),
        (gym.spaces.MultiDiscrete([2, 3]), "ppo can train on it"),
        (gym.spaces.MultiBinary(2), "ppo can train on it"),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), "ppo can train on it"),
        (gym.spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 3])), "ppo can train on it"),
    ],
)
def test_other_action_spaces_are_refused_with_what_would_do(space: gym.Space, would_do: str) -> None:
    (fault,) = check_spaces(VECTOR, space)
    needs = "a Box with a lower and an upper bound in each dimension"
    assert fault == f"action space {space} is not supported; sac needs {needs}; {would_do}"


def test_both_spaces_are_judged() -> None:
    assert len(check_spaces(gym.spaces.Text(3), gym.spaces.Discrete(2))) == 2
    assert len(check_spaces(gym.spaces.Text(3), UNEQUAL)) == 1
