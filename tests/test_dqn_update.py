"""DQN's update: compared with the plain torch on its page, its details one by one, and what it learns and refuses."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.dqn import DQN, check_spaces
from rl_training.algorithms.q_losses import importance_weights
from rl_training.algorithms.schedules import anneal
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import CheckpointError, NumericError
from rl_training.networks.backend import Backend
from rl_training.networks.q_network import QNetwork
from rl_training.runtime.network_trainer import require_weights
from tests.docs_code import losses_of
from tests.network_parts import by_autograd, to_tensors
from tests.off_policy_parts import (
    CAMERA,
    OBSERVATIONS,
    TEN_STEP_VALUES,
    VECTOR,
    choices,
    in_float64,
    live_ten_steps,
    make_dqn,
    mlp,
    random_batch,
    solve_contexts,
    targets,
    ten_steps,
    through_a_file,
    wide,
)

PLAIN = losses_of("dqn")
OPTIONS = {
    "plain": {},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "both": {"double": True, "dueling": True},
    "quantiles": {"quantiles": 5},
    "prioritized": {"prioritized_replay": {"beta_start": 0.3, "beta_end": 0.9}},
    "all": {"double": True, "dueling": True, "quantiles": 4, "prioritized_replay": {"beta_start": 0.6}},
}


def combine(outputs: list[torch.Tensor], config: Any) -> torch.Tensor:
    """Values [B, K], or quantiles [B, K, M], of a network's outputs, by the page's functions."""
    shaped = [output.reshape(len(output), -1, config.quantiles) if config.quantiles else output for output in outputs]
    return PLAIN.dueling(*shaped) if config.dueling else shaped[0]


def outputs_of(parameters: dict[str, torch.Tensor], x: torch.Tensor, config: Any) -> torch.Tensor:
    """What a network of two layers returns, in plain torch."""
    return combine([mlp(parameters, s, x, "observed.") for s in range(2 if config.dueling else 1)], config)


def page_losses(networks: Any, batch: ReplayBatch, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The page's losses and errors of each transition, of an online and a target network given as functions."""
    b = {name: to_tensors(array) for name, array in vars(batch).items() if array is not None}
    loss = PLAIN.quantile_dqn_loss if config.quantiles else PLAIN.dqn_loss
    return loss(*networks, b, double=config.double)


def page_loss(networks: Any, batch: ReplayBatch, config: Any, progress: float = 0.0) -> torch.Tensor:
    """The page's loss of a batch; of how many transitions it was drawn, and the sum of their priorities, cancel."""
    losses, _ = page_losses(networks, batch, config)
    if config.prioritized_replay is not None:
        start, end = config.prioritized_replay.beta_start, config.prioritized_replay.beta_end
        beta, shares = start + (end - start) * progress, torch.from_numpy(batch.priorities) / 4_321.0
        losses = losses * PLAIN.importance_weights(shares, 1_000, beta)
    return losses.mean()


def reference_loss(
    online: dict[str, torch.Tensor],
    target: dict[str, torch.Tensor],
    batch: ReplayBatch,
    config: Any,
    progress: float = 0.0,
) -> torch.Tensor:
    """The page's loss, of networks given by their parameters."""
    networks = [partial(outputs_of, parameters, config=config) for parameters in (online, target)]
    return page_loss(networks, batch, config, progress)


@pytest.mark.parametrize("option", OPTIONS)
def test_updates_equal_plain_torch(backend: Backend, option: str) -> None:
    dqn = make_dqn(
        **OPTIONS[option], seed=5, learning_rate=3e-3, learning_rate_schedule="linear", max_grad_norm=0.2, n_step=3
    )
    online = {name: nn.Parameter(tensor) for name, tensor in dqn.policy_state().items()}
    target = dqn.policy_state()
    adam = torch.optim.Adam(online.values())
    for step in range(4):
        batch = random_batch(choices, seed=step, scale=3.0)
        for group in adam.param_groups:
            group["lr"] = 3e-3 * (1 - step / 8)
        loss = reference_loss(online, target, batch, dqn.config, progress=step / 8)
        adam.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(online.values(), 0.2))
        adam.step()
        metrics = dqn.update(batch, progress=step / 8)
        assert metrics["train/q_loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert metrics["train/gradient_norm"] == pytest.approx(norm, rel=1e-4)
        assert norm > 0.2  # the clip is at work
        assert metrics["train/learning_rate"] == pytest.approx(3e-3 * (1 - step / 8))
        if step == 1:
            target = {name: parameter.detach().clone() for name, parameter in online.items()}
            dqn.update_target()
    for name, tensor in dqn.policy_state().items():
        torch.testing.assert_close(tensor, online[name].detach(), rtol=0, atol=1e-5)
    for name, tensor in dqn.state.target.state_dict().items():
        torch.testing.assert_close(tensor, target[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("option", OPTIONS)
def test_written_out_gradients_equal_autograd(backend: Backend, option: str) -> None:
    dqn = make_dqn(**OPTIONS[option])
    dqn.parameters, dqn.state.target = in_float64(dqn.network), in_float64(dqn.target_network)
    dqn.state.target.vector.mul_(0.7)
    batch = wide(random_batch(choices, scale=3.0))
    online = {name: nn.Parameter(tensor) for name, tensor in dqn.policy_state().items()}
    target = dqn.state.target.state_dict()
    gradients = torch.autograd.grad(reference_loss(online, target, batch, dqn.config), online.values())
    for _ in range(2):  # buffers are used again
        dqn._gradient(batch, 0.0)
        for (name, parameter), expected in zip(dqn.network.named_parameters(), gradients, strict=True):
            assert float((parameter.grad - expected).norm()) <= 1e-10 * float(expected.norm()), name


@pytest.mark.parametrize("option", ["plain", "dueling", "all"])
@pytest.mark.parametrize("space", [gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), CAMERA], ids=["image", "mixed"])
def test_gradients_of_convolutions_equal_autograd(backend: Backend, space: gym.Space, option: str) -> None:
    dqn = make_dqn(space, **OPTIONS[option])
    dqn.parameters, dqn.state.target = in_float64(dqn.network), in_float64(dqn.target_network)
    batch = wide(random_batch(choices, space, count=5, scale=3.0))
    dqn._gradient(batch, 0.0)
    got = dqn.parameters.gradient.clone()
    dqn._gradient(batch, 0.0)
    torch.testing.assert_close(dqn.parameters.gradient, got, rtol=1e-12, atol=0)  # overwritten and not added to

    def by_graph(network: QNetwork, observations: Any) -> torch.Tensor:
        return combine(by_autograd(network.observed, observations), dqn.config)

    loss = page_loss([partial(by_graph, network) for network in (dqn.network, dqn.target_network)], batch, dqn.config)
    expected = torch.autograd.grad(loss, list(dqn.network.parameters()))
    for (name, parameter), gradient in zip(dqn.network.named_parameters(), expected, strict=True):
        assert float(gradient.norm()) > 0.0
        assert float((parameter.grad - gradient).norm()) <= 1e-10 * float(gradient.norm()), name


def test_metrics_by_hand() -> None:
    dqn = make_dqn(total_timesteps=1_000)
    batch = random_batch(choices)
    q = dqn.q_values(batch.obs)
    metrics = dqn.update(batch, progress=0.05)
    assert set(metrics) == {
        f"train/{name}"
        for name in ("q_loss", "q_mean", "q_max", "gradient_norm", "learning_rate", "exploration_rate")
    }  # fmt: skip
    assert metrics["train/q_mean"] == pytest.approx(float(q[np.arange(32), batch.actions].mean()), rel=1e-4)
    assert metrics["train/q_max"] == pytest.approx(float(q.max()), rel=1e-5)
    assert metrics["train/exploration_rate"] == pytest.approx(0.525)  # half of the first tenth


# Targets.


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [(False, False, 5 + 0.9 * 7), (True, False, 5), (False, True, 5 + 0.9 * 7), (True, True, 5)],
)
def test_only_a_terminated_transition_has_no_next_value(terminated: bool, truncated: bool, target: float) -> None:
    dqn = make_dqn()
    dqn.state.target.vector.zero_()
    with torch.no_grad():
        dqn.target_network.observed.mlps.head_biases[0].copy_(torch.tensor([1.0, 7.0, 3.0]))
    buffer = ReplayBuffer(4, 1, (3,), np.dtype(np.float32), (), np.dtype(np.int64), gamma=0.9)
    x = np.ones((1, 3), np.float32)
    buffer.add(x, np.array([2]), np.array([5.0]), x, np.array([terminated]), np.array([truncated]))
    assert targets(dqn, buffer.sample(2, dqn.replay_rng)).tolist() == pytest.approx([target] * 2)


def test_n_step_targets_by_hand() -> None:
    """Rewards 1, 2, 4, 8; the third step's flag cuts what the buffer sums, and decides whether the rest has a value."""
    dqn = make_dqn(n_step=3, gamma=0.5)
    dqn.state.target.vector.zero_()
    with torch.no_grad():
        dqn.target_network.observed.mlps.head_biases[0].fill_(16.0)
    for terminated, expected in (
        (True, {0: 1 + 1 + 1, 1: 2 + 2, 2: 4, 3: 8 + 8}),
        (False, {0: 3 + 16 / 8, 1: 4 + 16 / 4, 2: 4 + 16 / 2, 3: 8 + 8}),
    ):
        buffer = ReplayBuffer(8, 1, (3,), np.dtype(np.float32), (), np.dtype(np.int64), n_step=3, gamma=0.5)
        for step in range(4):
            ended = step == 2
            flags = np.array([ended and terminated]), np.array([ended and not terminated])
            x = np.full((1, 3), step, np.float32)
            buffer.add(x, np.array([0]), np.array([2.0**step]), x + 1, *flags)
        batch = buffer.sample(64, dqn.replay_rng)
        got = dict(zip(batch.obs[:, 0].astype(int).tolist(), targets(dqn, batch).tolist(), strict=True))
        assert got == pytest.approx(expected)


def test_double_q_values_the_online_networks_choice() -> None:
    plain, double = make_dqn(), make_dqn(double=True)
    for dqn in (plain, double):
        for vector in (dqn.parameters.vector, dqn.state.target.vector):
            vector.zero_()
        with torch.no_grad():
            dqn.network.observed.mlps.head_biases[0].copy_(torch.tensor([0.0, 0.0, 1.0]))
            dqn.target_network.observed.mlps.head_biases[0].copy_(torch.tensor([30.0, 20.0, 10.0]))
    x = np.ones((1, 3), np.float32)
    batch = ReplayBatch(x, np.array([0]), np.float32([0]), x, np.float32([1]))
    assert targets(plain, batch).tolist() == [30.0]
    assert targets(double, batch).tolist() == [10.0]


QUANTILES = [[0.0, 9.0], [3.0, 5.0], [1.0, 2.0]]
"""Two quantiles of the return of each of three actions, whose means are 4.5, 4 and 1.5."""


def with_quantiles(online: list[list[float]], target: list[list[float]], **settings: Any) -> DQN:
    """An agent whose networks return these quantiles for any observation."""
    dqn = make_dqn(quantiles=2, gamma=0.5, **settings)
    for vector in (dqn.parameters.vector, dqn.state.target.vector):
        vector.zero_()
    with torch.no_grad():
        dqn.network.observed.mlps.head_biases[0].copy_(torch.tensor(online).flatten())
        dqn.target_network.observed.mlps.head_biases[0].copy_(torch.tensor(target).flatten())
    return dqn


def test_the_value_of_an_action_is_the_mean_of_its_quantiles() -> None:
    dqn, x = with_quantiles(QUANTILES, QUANTILES), np.ones((2, 3), np.float32)
    assert dqn.q_values(x).tolist() == dqn.policy_outputs(x).tolist() == [[4.5, 4.0, 1.5]] * 2
    assert dqn.act_greedy(x).tolist() == [0, 0]


def test_quantile_targets_are_all_quantiles_of_the_best_next_action() -> None:
    x, zero = np.ones((2, 3), np.float32), np.zeros(2, np.int64)
    batch = ReplayBatch(x, zero, np.float32([1, 1]), x, np.float32([0.5, 0]))  # the second one ended its episode
    plain, double = (with_quantiles([*QUANTILES[1:], [8.0, 8.0]], QUANTILES, double=double) for double in (False, True))
    assert targets(plain, batch).tolist() == [[1.0, 5.5], [1.0, 1.0]]  # the first action has the mean of 4.5
    assert targets(double, batch).tolist() == [[1.5, 2.0], [1.0, 1.0]]  # the online network chooses the last action


def test_the_quantile_loss_by_hand() -> None:
    """Quantiles 0 and 2 at the levels 1/4 and 3/4, against the target 1 with both samples: errors of 1 and -1.

    The Huber loss of both is a half; a quantile below its target weighs as its level, one above as one less its level.
    """
    dqn, x = with_quantiles([[0.0, 2.0]] * 3, QUANTILES), np.ones((1, 3), np.float32)
    batch = ReplayBatch(x, np.array([1]), np.float32([1]), x, np.float32([0]))
    measured = dqn._gradient(batch, 0.0)
    assert measured["q_loss"] == pytest.approx(0.25 * 0.5 + 0.25 * 0.5)
    assert (measured["q_mean"], measured["q_max"]) == (1.0, 1.0)
    bias = dqn.network.observed.mlps.head_biases[0].grad
    assert bias.tolist() == pytest.approx([0.0, 0.0, -0.25, 0.25, 0.0, 0.0])


# Prioritized replay.


def test_the_errors_that_decide_priorities_by_hand() -> None:
    """Values: the TD error. Quantiles: the mean over the quantiles of their loss, here two of 1/8."""
    x, zero = np.ones((2, 3), np.float32), np.zeros(2, np.int64)
    priorities = np.array([1.0, 2.0])
    batch = ReplayBatch(x, zero, np.float32([5, -2]), x, np.float32([0, 0]), priorities=priorities)
    dqn = make_dqn(prioritized_replay={})
    dqn.parameters.vector.zero_()
    dqn.update(batch, 0.0)
    assert dqn.errors.tolist() == [-5.0, 2.0]
    one = replace(batch.select(slice(0, 1)), rewards=np.float32([1]))
    dqn = with_quantiles([[0.0, 2.0]] * 3, QUANTILES, prioritized_replay={})
    dqn.update(one, 0.0)
    assert dqn.errors.tolist() == [0.125]


def test_importance_weights_by_hand() -> None:
    """Four times the priority is drawn four times as often, and weighs a quarter if beta is 1, a half if it is 1/2."""
    priorities = np.array([2.0, 8.0, 2.0])
    assert importance_weights(priorities, 1.0).tolist() == [1.0, 0.25, 1.0]
    assert importance_weights(priorities, 0.5).tolist() == [1.0, 0.5, 1.0]
    assert importance_weights(priorities, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_beta_is_a_function_of_progress_alone() -> None:
    prioritized = make_dqn(prioritized_replay={}).config.prioritized_replay
    assert [prioritized.beta_at(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.7, 1.0])


def test_batches_by_priority_are_drawn_one_by_one() -> None:
    """Because each update changes what is drawn next."""
    assert make_dqn(batch_size=64, gradient_steps=128, prioritized_replay={}).batches_ahead == (1, 1)


# Target values of several batches at once.


@pytest.mark.parametrize("option", OPTIONS)
def test_updates_with_target_values_from_ahead_equal_updates_without(option: str) -> None:
    batches, results = random_batch(choices, count=5 * 64), []
    for look_ahead in (lambda dqn: dqn.look_ahead(batches, 0), lambda dqn: batches):
        dqn = make_dqn(**OPTIONS[option], batch_size=64, gradient_steps=5)
        dqn.state.target.vector.mul_(0.7)
        drawn = look_ahead(dqn)
        results.append([dqn.update(drawn.select(slice(i * 64, (i + 1) * 64)), 0.0) for i in range(5)])
    for ahead, alone in zip(*results, strict=True):
        assert ahead == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("quantiles", [0, 7])
@pytest.mark.parametrize("double", [False, True])
def test_no_bit_of_a_target_value_depends_on_how_many_are_computed_at_once(double: bool, quantiles: int) -> None:
    settings = {"double": double, "quantiles": quantiles}
    dqn = make_dqn(batch_size=50, gradient_steps=10, network={"hidden": [64, 64]}, **settings)
    batches = random_batch(choices, count=500)
    field = "next_outputs" if double else "targets"
    values = getattr(dqn.look_ahead(batches, 13), field)
    alone = dqn.target_network.evaluate(batches.next_obs)
    expected = alone if double else targets(dqn, batches)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)
    for first in (50, 250, 450):
        rest = dqn.look_ahead(batches.select(slice(first, None)), 13 + first // 50)
        assert np.array_equal(getattr(rest, field), values[first:])


@pytest.mark.parametrize(
    ("batch_size", "gradient_steps", "threads", "space", "expected"),
    [
        (64, 128, 1, VECTOR, (4, 16)),
        (64, 128, 2, VECTOR, (4, 32)),
        (64, 128, 8, VECTOR, (4, 32)),
        (64, 3, 1, VECTOR, (1, 1)),
        (64, 4, 1, VECTOR, (4, 16)),
        (400, 1, 1, VECTOR, (1, 1)),
        (400, 2, 1, VECTOR, (1, 2)),
        (2_048, 1, 1, VECTOR, (1, 1)),
        (64, 128, 2, CAMERA, (1, 1)),
    ],
)
def test_batches_are_drawn_together_where_target_values_gain_by_it(
    backend: Backend, batch_size: int, gradient_steps: int, threads: int, space: gym.Space, expected: tuple[int, int]
) -> None:
    dqn = make_dqn(space, batch_size=batch_size, gradient_steps=gradient_steps, threads=threads)
    assert dqn.batches_ahead == (expected if backend.xp is np else (1, 1))


def test_a_target_weight_that_is_not_finite_is_named_though_its_values_came_from_ahead() -> None:
    dqn = make_dqn(batch_size=64, gradient_steps=5)
    dqn.state.target.vector[0] = np.nan
    with pytest.raises(NumericError, match=r"weight observed.mlps.weights.0 of the target network is not finite"):
        dqn.update(dqn.look_ahead(random_batch(choices, count=64), 0), 0.0)


def test_the_target_network_is_updated_only_when_it_is_due() -> None:
    dqn = make_dqn()
    assert torch.equal(dqn.state.target.vector, dqn.parameters.vector)
    start = dqn.parameters.vector.clone()
    for step in range(3):
        dqn.update(random_batch(choices, seed=step), 0.0)
    assert torch.equal(dqn.state.target.vector, start)
    assert not torch.equal(dqn.parameters.vector, start)
    dqn.update_target()
    assert torch.equal(dqn.state.target.vector, dqn.parameters.vector)


# Acting.


@pytest.mark.parametrize(
    ("num_timesteps", "expected"), [(0, 1.0), (99, 1.0), (100, 0.9), (250, 0.75), (500, 0.5), (5_000, 0.5)]
)
def test_epsilon_is_a_function_of_the_step_alone(num_timesteps: int, expected: float) -> None:
    """All random for 100 steps; linear from 1 at step 0 to 0.5 at step 500, half of all."""
    config = make_dqn(
        total_timesteps=1_000, learning_starts=100, exploration={"start": 1.0, "end": 0.5, "fraction": 0.5}
    ).config
    assert config.epsilon_at(num_timesteps) == pytest.approx(expected)


def test_epsilon_without_a_decay_is_at_its_end() -> None:
    assert make_dqn(exploration={"fraction": 0}).config.epsilon_at(0) == 0.05


def test_each_environment_explores_by_a_draw_of_its_own() -> None:
    dqn = make_dqn(actions=50, exploration={"start": 0.5, "end": 0.5})
    with torch.no_grad():
        dqn.network.observed.mlps.head_biases[0][7] = 100.0
    observations = np.zeros((6, 3), np.float32)
    explored = np.stack([dqn.act(observations, step) != 7 for step in range(2_000)])
    np.testing.assert_allclose(explored.mean(0), 0.5 * 49 / 50, atol=0.045)  # four deviations
    together = explored.all(1) | (~explored).all(1)
    assert together.mean() < 0.06  # one draw for all would give 1; by chance 2 / 2^6
    random_actions = {int(a) for step in range(300) for a in dqn.act(observations, step)}
    assert random_actions == set(range(50))


def test_warm_up_is_uniform_and_draws_are_spent_alike_whoever_explores() -> None:
    warm, cold = make_dqn(learning_starts=100), make_dqn(exploration={"start": 0.0, "end": 0.0})
    observations = np.zeros((3_000, 3), np.float32)
    np.testing.assert_allclose(np.bincount(warm.act(observations, 99)) / 3_000, 1 / 3, atol=0.04)
    assert len(set(cold.act(observations, 99).tolist())) == 1
    assert str(warm.state.action_rng.bit_generator.state) == str(cold.state.action_rng.bit_generator.state)


def test_one_environment_draws_what_numpy_draws_for_arrays_of_one() -> None:
    dqn, rng = make_dqn(exploration={"start": 0.5, "end": 0.5}), np.random.default_rng()
    rng.bit_generator.state = dqn.state.action_rng.bit_generator.state
    observation, explored = np.ones((1, 3), np.float32), 0
    greedy = dqn.act_greedy(observation)
    for step in range(200):
        explores, random = rng.random(1) < 0.5, rng.integers(3, size=1)
        action = dqn.act(observation, step)
        assert action.dtype == np.int64
        assert np.array_equal(action, np.where(explores, random, greedy))
        explored += int(explores[0])
    assert 0 < explored < 200
    assert dqn.state.action_rng.bit_generator.state == rng.bit_generator.state


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("space", [VECTOR, CAMERA], ids=["vector", "mixed"])
def test_greedy_actions_have_the_largest_q(space: gym.Space, option: str) -> None:
    dqn = make_dqn(space, **OPTIONS[option])
    dqn.parameters.vector.add_(
        0.2 * torch.randn(dqn.parameters.vector.shape, generator=torch.Generator().manual_seed(0))
    )
    observations = random_batch(choices, space).obs
    greedy = dqn.act_greedy(observations)
    assert greedy.dtype == np.int64
    np.testing.assert_array_equal(greedy, dqn.q_values(observations).argmax(1))
    assert len(set(greedy.tolist())) > 1


def test_dueling_values_average_to_the_state_value() -> None:
    dqn = make_dqn(dueling=True)
    observations = random_batch(choices).obs
    value, _ = dqn.network.observed.evaluate(observations)
    value = value.copy()
    np.testing.assert_allclose(dqn.q_values(observations).mean(1), value[:, 0], atol=1e-6)


# Learning.


@pytest.mark.parametrize(
    ("kind", "steps"), [("vector", 400), ("discrete", 400), ("dict", 400), ("image", 150), ("mixed", 250)]
)
def test_each_kind_of_observation_is_learnt_from(kind: str, steps: int) -> None:
    dqn = make_dqn(OBSERVATIONS[kind][0], seed=2, learning_rate=3e-3, exploration={"end": 0.3})
    best = np.array([2, 0, 1])
    observations = solve_contexts(dqn, kind, lambda c, a: (a == best[c]).astype(float), steps, 32)
    assert dqn.act_greedy(observations).tolist() == best.tolist()
    np.testing.assert_allclose(dqn.q_values(observations), np.eye(3)[best], atol=0.25)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_options_learn_too(option: str) -> None:
    dqn = make_dqn(**OPTIONS[option], seed=3, learning_rate=3e-3, exploration={"end": 0.3})
    best = np.array([1, 2, 0])
    observations = solve_contexts(dqn, "vector", lambda c, a: (a == best[c]).astype(float), 400, 32)
    np.testing.assert_allclose(dqn.q_values(observations), np.eye(3)[best], atol=0.2)


@pytest.mark.parametrize(("ends", "first", "last"), TEN_STEP_VALUES)
def test_values_of_episodes_of_ten_steps(ends: str, first: float, last: float) -> None:
    dqn = make_dqn(
        gym.spaces.Box(0, 1, (2,)), 2, gamma=0.9, learning_rate=3e-3, learning_rate_schedule="linear",
        exploration={"end": 1.0}, network={"hidden": [32, 32]},
    )  # fmt: skip
    live_ten_steps(dqn, ends, 2_000, lambda done: dqn.update_target() if done % 20 == 0 else None)
    learnt = dqn.q_values(ten_steps(np.array([0, 9]), ends))
    np.testing.assert_allclose(learnt[0], first, rtol=0.05)
    np.testing.assert_allclose(learnt[1], last, rtol=0.05)


# State.


def bits(dqn: DQN) -> tuple[Any, ...]:
    state = dqn.state
    vectors = (dqn.parameters.vector, state.target.vector, state.optimizer.mean, state.optimizer.square)
    generators = (state.action_rng, state.replay_rng)
    return (*(v.numpy().tobytes() for v in vectors), *(str(g.bit_generator.state) for g in generators))


def live_on(dqn: DQN, first: int) -> None:
    for step in range(first, first + 5):
        dqn.act(random_batch(choices, seed=step).obs, step)
        dqn.replay_rng.integers(10)
        dqn.update(random_batch(choices, seed=step), step / 20)
        if step % 3 == 0:
            dqn.update_target()


@pytest.mark.parametrize("option", OPTIONS)
def test_a_new_object_continues_with_the_same_bits(option: str) -> None:
    settings = {**OPTIONS[option], "seed": 4, "learning_rate_schedule": "linear", "exploration": {"end": 0.5}}
    whole, part, again = (make_dqn(**settings) for _ in range(3))
    for dqn in (whole, part):
        live_on(dqn, 0)
    again.load_policy_state(through_a_file(part.policy_state()))
    again.load_state_dict(through_a_file(part.state_dict()))
    for dqn in (whole, again):
        live_on(dqn, 5)
    assert bits(whole) == bits(again)
    assert again.state.optimizer.steps == 10


def test_a_saved_state_does_not_change_with_the_agent() -> None:
    dqn = make_dqn()
    saved = dqn.state_dict()
    kept = through_a_file(saved)
    live_on(dqn, 0)
    assert all(torch.equal(saved["target"][name], kept["target"][name]) for name in kept["target"])
    assert torch.equal(saved["optimizer"]["mean"], kept["optimizer"]["mean"])
    assert saved["action_rng"] == kept["action_rng"]


def test_weights_of_another_network_are_refused() -> None:
    small, large = make_dqn(), make_dqn(network={"hidden": [8, 8]})
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_policy_state(large.policy_state())
    for option in ("dueling", "quantiles"):
        with pytest.raises(CheckpointError, match="weights do not fit"):
            make_dqn(**OPTIONS[option]).load_state_dict(small.state_dict())


def test_a_received_network_with_more_quantiles_than_its_file_holds_is_refused() -> None:
    """Before it is made: its head alone would have 16 * 3 * 10^9 weights."""
    small, space = make_dqn(), ObservationEncoder(VECTOR)
    config = make_dqn().config.model_copy(update={"quantiles": 10**9})
    with pytest.raises(CheckpointError, match=r"it has at least 48,000,000,304 in 3 layers"):
        require_weights(config, space, ActionCodec(gym.spaces.Discrete(3)), small.policy_state())


def test_epsilon_of_adam_is_a_setting() -> None:
    """Adam's first step is lr g / (|g| + epsilon): with a large epsilon, about lr g / epsilon."""
    dqn = make_dqn(adam_epsilon=1e6, learning_rate=1.0, max_grad_norm=1e9)
    before = dqn.parameters.vector.clone()
    dqn.update(random_batch(choices), 0.0)
    torch.testing.assert_close(dqn.parameters.vector, before - 1e-6 * dqn.parameters.gradient, rtol=0, atol=1e-7)
    assert make_dqn().state.optimizer.epsilon == 1e-8


def test_the_seed_decides_weights_and_actions() -> None:
    first, same, other = (make_dqn(seed=seed) for seed in (1, 1, 2))
    for dqn in (first, same, other):
        live_on(dqn, 0)
    assert bits(first) == bits(same)
    assert not torch.equal(first.parameters.vector, other.parameters.vector)


def test_schedules_are_functions_of_progress() -> None:
    assert anneal(0.3, "constant", 0.9) == 0.3
    assert anneal(0.3, "linear", 2 / 3) == pytest.approx(0.1)


# Refusals.


def nan_weight(dqn: DQN, batch: ReplayBatch) -> None:
    with torch.no_grad():
        dqn.network.observed.mlps.weights[1][0, 2, 3] = np.nan


def infinite_target(dqn: DQN, batch: ReplayBatch) -> None:
    with torch.no_grad():
        dqn.target_network.observed.mlps.head_biases[0][0] = np.inf


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda dqn, batch: batch.rewards.fill(np.nan), "replayed rewards is not finite"),
        (lambda dqn, batch: batch.next_obs.fill(np.nan), "replayed next_obs is not finite"),
        (nan_weight, r"weight observed\.mlps\.weights\.1 of the Q-network is not finite"),
        (infinite_target, r"weight observed\.mlps\.head_biases\.0 of the target network is not finite"),
        (lambda dqn, batch: (batch.rewards.fill(3e38), batch.obs.fill(1e38)), "q_loss is not finite|gradient of"),
    ],
)
def test_what_is_not_finite_is_named_and_the_weights_stay(spoil: Any, named: str) -> None:
    dqn, batch = make_dqn(), random_batch(choices)
    spoil(dqn, batch)
    before = dqn.parameters.vector.clone()
    with pytest.raises(NumericError, match=named):
        dqn.update(batch, 0.0)
    torch.testing.assert_close(dqn.parameters.vector, before, rtol=0, atol=0, equal_nan=True)
    assert dqn.state.optimizer.steps == 0


def test_a_nan_in_the_vector_part_of_a_mixed_observation_is_named() -> None:
    dqn, batch = make_dqn(CAMERA), random_batch(choices, CAMERA)
    batch.obs["vector"][3] = np.nan
    with pytest.raises(NumericError, match="replayed obs is not finite"):
        dqn.update(batch, 0.0)


@pytest.mark.parametrize("space", [gym.spaces.Discrete(2), gym.spaces.Discrete(3, start=-1)])
def test_spaces_that_dqn_trains_on(space: gym.Space) -> None:
    assert check_spaces(VECTOR, space) == []
    assert check_spaces(CAMERA, space) == []


@pytest.mark.parametrize(
    ("space", "would_do"),
    [
        (gym.spaces.MultiDiscrete([2, 3]), "ppo can train on it"),
        (gym.spaces.MultiBinary(2), "ppo can train on it"),
        (gym.spaces.Box(-1, 1, (2,)), "ppo, sac, td3 and tqc can train on it"),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), "ppo can train on it"),
        (gym.spaces.Text(3), "no built-in algorithm can train on it"),
    ],
)
def test_other_action_spaces_are_refused_with_what_would_do(space: gym.Space, would_do: str) -> None:
    (fault,) = check_spaces(VECTOR, space)
    assert fault == f"action space {space} is not supported; dqn needs Discrete; {would_do}"


def test_both_spaces_are_judged() -> None:
    faults = check_spaces(gym.spaces.Text(3), gym.spaces.MultiBinary(2))
    assert len(faults) == 2
    assert faults[0].startswith("observation space Text")
    assert faults[1].startswith("action space MultiBinary(2)")
    assert len(check_spaces(gym.spaces.Text(3), gym.spaces.Discrete(2))) == 1
