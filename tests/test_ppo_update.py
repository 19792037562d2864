"""PPO's update: compared with the plain torch on its page, its details one by one, and what it refuses."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms import ppo_learner as module
from rl_training.algorithms import ppo_losses
from rl_training.algorithms.ppo import PPO, check_spaces
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer
from rl_training.errors import CheckpointError, NumericError
from rl_training.networks.backend import Backend
from tests.docs_code import losses_of
from tests.network_parts import by_autograd, to_tensors
from tests.off_policy_parts import CAMERA, choices, in_float64, random_batch, wide
from tests.ppo_parts import ACTIONS, VECTOR, go_on, make_ppo, random_rollout

PLAIN = losses_of("ppo")


def distribution_of(kind: str, outputs: torch.Tensor, log_std: torch.Tensor | None) -> tuple[Any, Any]:
    """Log-probability (a function of actions) and entropy, by torch.distributions."""
    if kind == "box":
        normal = torch.distributions.Independent(torch.distributions.Normal(outputs, log_std.exp()), 1)
        return normal.log_prob, normal.entropy()
    if kind == "multi_binary":
        bits = torch.distributions.Independent(torch.distributions.Bernoulli(logits=outputs), 1)
        return lambda actions: bits.log_prob(actions.to(outputs.dtype)), bits.entropy()
    parts = [torch.distributions.Categorical(logits=o) for o in outputs.split([2, 3] if kind != "discrete" else 3, 1)]
    return (
        lambda actions: sum(p.log_prob(a) for p, a in zip(parts, actions.reshape(len(actions), -1).T, strict=True)),
        sum(p.entropy() for p in parts),
    )


def plain_loss(
    config: PPOConfig, log_prob: Any, entropy: torch.Tensor, values: torch.Tensor, b: dict[str, Any], clip: float
) -> torch.Tensor:
    """The page's loss of a minibatch `b`, of values [B, 1]."""
    if config.normalize_advantage:
        b = b | {"advantages": PLAIN.normalize(b["advantages"])}
    settings = {name: getattr(config, name) for name in ("value_clip", "value_coef", "entropy_coef")}
    return PLAIN.ppo_loss(log_prob(b["actions"]), entropy, values.squeeze(1), b, clip_range=clip, **settings)


def reference_update(ppo: PPO, kind: str, buffer: RolloutBuffer, learning_rate: float, clip: float) -> dict[str, Any]:
    """The same update with the page's loss: autograd, torch's distributions, clipping and Adam."""
    config = ppo.config
    p = {name: nn.Parameter(tensor) for name, tensor in ppo.policy_state().items()}
    adam = torch.optim.Adam(p.values(), lr=learning_rate, eps=config.adam_epsilon)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(config.seed, spawn_key=(3,))))
    fields = ("obs", "actions", "logprobs", "values", "advantages", "returns")
    flat = {f: torch.from_numpy(getattr(buffer, f).reshape(32, *getattr(buffer, f).shape[2:])) for f in fields}
    for _ in range(config.epochs):
        for index in np.split(rng.permutation(32), range(config.batch_size, 32, config.batch_size)):
            b = {name: tensor[index] for name, tensor in flat.items()}
            heads = []
            for s in (0, 1):
                h = torch.tanh(b["obs"] @ p["mlps.weights.0"][s] + p["mlps.biases.0"][s])
                h = torch.tanh(h @ p["mlps.weights.1"][s] + p["mlps.biases.1"][s])
                heads.append(h @ p[f"mlps.head_weights.{s}"] + p[f"mlps.head_biases.{s}"])
            log_prob, entropy = distribution_of(kind, heads[0], p.get("distribution.log_std"))
            loss = plain_loss(config, log_prob, entropy, heads[1], b, clip)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(p.values(), config.max_grad_norm)
            adam.step()
    return {name: parameter.detach() for name, parameter in p.items()}


@pytest.mark.parametrize("kind", ACTIONS)
def test_an_update_equals_plain_torch(backend: Backend, kind: str) -> None:
    ppo = make_ppo(
        VECTOR, ACTIONS[kind], batch_size=12, learning_rate=3e-3, entropy_coef=0.02, learning_rate_schedule="linear",
        clip_range_schedule="linear", clip_range=0.1, seed=5,
    )  # fmt: skip
    buffer = random_rollout(ppo, ACTIONS[kind])
    start = ppo.policy_state()
    expected = reference_update(ppo, kind, buffer, learning_rate=3e-3 * 0.75, clip=0.1 * 0.75)
    metrics = ppo.update(buffer, progress=0.25, poll=go_on)
    assert metrics["train/learning_rate"] == pytest.approx(3e-3 * 0.75)
    assert metrics["train/clip_range"] == pytest.approx(0.075)
    assert metrics["train/clip_fraction"] > 0.0
    for name, tensor in ppo.policy_state().items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=0, atol=2e-5, msg=lambda text, name=name: f"{name} {text}"
        )
        assert not torch.equal(tensor, start[name])


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("kind", ACTIONS)
def test_written_out_gradients_equal_autograd(backend: Backend, kind: str, value_clip: float | None) -> None:
    ppo = make_ppo(VECTOR, ACTIONS[kind], value_clip=value_clip, entropy_coef=0.1, batch_size=32)
    rollout = next(random_rollout(ppo, ACTIONS[kind]).iter_minibatches(32, np.arange(32)))
    ppo.parameters = in_float64(ppo.network, noise=0.1)
    wide = [f.astype(np.float64) if f.dtype == np.float32 else f for f in vars(rollout).values()]
    minibatch = Minibatch(*wide)
    b = {name: torch.from_numpy(array) for name, array in vars(minibatch).items()}

    outputs, values = by_autograd(ppo.network, b["obs"])
    log_prob, entropy = distribution_of(kind, outputs, getattr(ppo.distribution, "log_std", None))
    loss = plain_loss(ppo.config, log_prob, entropy, values, b, clip=0.1)
    expected = torch.autograd.grad(loss, list(ppo.network.parameters()))
    for _ in range(2):  # overwritten and not added to
        measured = ppo._gradient(minibatch, clip_range=0.1)
    assert 0.0 < measured.clip_fraction < 1.0
    for (name, parameter), want in zip(ppo.network.named_parameters(), expected, strict=True):
        assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm()), name


@pytest.mark.parametrize("space", [gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), CAMERA], ids=["image", "mixed"])
def test_gradients_of_convolutions_equal_autograd(backend: Backend, space: gym.Space) -> None:
    ppo = make_ppo(space, ACTIONS["discrete"], normalize_advantage=False, batch_size=32, entropy_coef=0.1)
    ppo.parameters = in_float64(ppo.network)
    obs = wide(random_batch(choices, space)).obs
    rng = np.random.default_rng(0)
    minibatch = Minibatch(obs, rng.integers(3, size=32), *rng.standard_normal((4, 32)) - 2.0)
    outputs, values = by_autograd(ppo.network, to_tensors(obs))
    log_prob, entropy = distribution_of("discrete", outputs, None)
    b = {name: torch.from_numpy(array) for name, array in vars(minibatch).items() if name != "obs"}
    loss = plain_loss(ppo.config, log_prob, entropy, values, b, clip=0.2)
    expected = torch.autograd.grad(loss, list(ppo.network.parameters()))
    for _ in range(2):
        ppo._gradient(minibatch, clip_range=0.2)
    for (name, parameter), want in zip(ppo.network.named_parameters(), expected, strict=True):
        assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm()), name


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_ratio_is_one_before_the_first_step(kind: str) -> None:
    ppo = make_ppo(VECTOR, ACTIONS[kind], batch_size=32, epochs=1)
    buffer = random_rollout(ppo, ACTIONS[kind])
    measured = ppo._gradient(next(buffer.iter_minibatches(32, np.arange(32))), clip_range=1e-5)
    assert measured.clip_fraction == 0.0  # no ratio differs from 1 by more than 1e-5
    assert measured.policy_loss == pytest.approx(0.0, abs=1e-5)  # normalised advantages have mean 0
    assert measured.approx_kl == pytest.approx(0.0, abs=1e-6)


def test_metrics_by_hand() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], batch_size=32, epochs=1)
    buffer = random_rollout(ppo, ACTIONS["box"])
    metrics = ppo.update(buffer, 0.0, go_on)
    assert set(metrics) == {
        f"train/{name}"
        for name in (
            "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance",
            "gradient_norm", "learning_rate", "clip_range", "std",
        )
    }  # fmt: skip
    errors = buffer.returns - buffer.values
    assert metrics["train/value_loss"] == pytest.approx(float(np.square(errors).mean()), rel=1e-4)
    assert metrics["train/entropy"] == pytest.approx(math.log(2 * math.pi * math.e), rel=1e-5)  # two dims, deviation 1
    assert metrics["train/explained_variance"] == pytest.approx(1 - errors.var() / buffer.returns.var(), rel=1e-4)
    assert metrics["train/std"] == pytest.approx(1.0, abs=1e-3)


def test_metrics_are_means_over_transitions_not_over_minibatches() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["discrete"], batch_size=31, epochs=1, learning_rate=1e-12)
    buffer = random_rollout(ppo, ACTIONS["discrete"])
    expected = float(np.square(buffer.returns - buffer.values).mean())
    assert ppo.update(buffer, 0.0, go_on)["train/value_loss"] == pytest.approx(expected, rel=1e-4)


def test_explained_variance_of_constant_returns_is_left_out() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["discrete"])
    buffer = random_rollout(ppo, ACTIONS["discrete"])
    buffer.returns[:] = np.float32(0.1) + np.float32(1e-9) * np.arange(4)
    assert "train/explained_variance" not in ppo.update(buffer, 0.0, go_on)
    buffer.returns[0, 0] = 0.2
    assert "train/explained_variance" in ppo.update(buffer, 0.0, go_on)


def test_perfect_values_explain_everything() -> None:
    buffer = random_rollout(make_ppo(VECTOR, ACTIONS["discrete"]), ACTIONS["discrete"])
    buffer.values[:] = buffer.returns + 3.0
    assert module.explained_variance(buffer) == {"explained_variance": pytest.approx(1.0)}


@pytest.mark.parametrize("clip_side", [1.0, -1.0])
def test_the_surrogate_is_the_pessimistic_one(clip_side: float) -> None:
    advantage, losses, slopes = np.float32([clip_side]), [], []
    for ratio in (0.5, 0.9, 1.0, 1.1, 2.0):
        loss, d_ratio = ppo_losses.clipped_surrogate_loss(np.float32([ratio]), advantage, 0.2, np)
        losses.append(float(loss))
        slopes.append(float(d_ratio[0]))
    assert losses == pytest.approx([-0.5, -0.9, -1.0, -1.1, -1.2] if clip_side > 0 else [0.8, 0.9, 1.0, 1.1, 2.0])
    assert slopes == ([-1, -1, -1, -1, 0] if clip_side > 0 else [0, 1, 1, 1, 1])


def test_the_value_loss_is_the_mean_squared_error_and_its_clip_takes_the_larger() -> None:
    values, old, returns = np.float32([2, 0, 1, 2]), np.float32([0, 0, 1, 0]), np.float32([3, 4, -1, 0])
    loss, slopes = ppo_losses.clipped_value_loss(values, old, returns, None, np)
    assert loss == pytest.approx((1 + 16 + 4 + 4) / 4)
    assert slopes.tolist() == pytest.approx([-2 / 4, -8 / 4, 4 / 4, 4 / 4])
    # The first and the last are kept at 0.5: (0.5 - 3)^2 = 6.25 > 1, which is flat there, and 0.5^2 < 2^2.
    loss, slopes = ppo_losses.clipped_value_loss(values, old, returns, 0.5, np)
    assert loss == pytest.approx((6.25 + 16 + 4 + 4) / 4)
    assert slopes.tolist() == pytest.approx([0.0, -8 / 4, 4 / 4, 4 / 4])


def test_normalised_advantages() -> None:
    np.testing.assert_allclose(ppo_losses.normalize_advantages(np.float32([1, 2, 3])), [-1, 0, 1], atol=1e-6)
    assert ppo_losses.normalize_advantages(np.float32([7.5])).tolist() == [7.5]
    for constant in (0.1, -1e4, 3.3e-7):
        assert ppo_losses.normalize_advantages(np.full(255, constant, np.float32)).tolist() == [0.0] * 255


@pytest.mark.parametrize("batch_size", [31, 16, 5])
def test_a_small_last_minibatch_is_learnt_from_safely(batch_size: int) -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], batch_size=batch_size, epochs=3)
    polls = []
    ppo.update(random_rollout(ppo, ACTIONS["box"]), 0.0, lambda: polls.append(1))
    assert len(polls) == 3 * math.ceil(32 / batch_size)
    assert bool(torch.isfinite(ppo.parameters.vector).all())


def test_equal_advantages_teach_the_policy_nothing() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["discrete"])
    buffer = random_rollout(ppo, ACTIONS["discrete"])
    buffer.advantages[:] = 0.1
    before = ppo.policy_state()
    ppo.update(buffer, 0.0, go_on)
    after = ppo.policy_state()
    assert torch.equal(after["mlps.weights.0"][0], before["mlps.weights.0"][0])
    assert torch.equal(after["mlps.head_weights.0"], before["mlps.head_weights.0"])
    assert not torch.equal(after["mlps.head_weights.1"], before["mlps.head_weights.1"])


def test_the_update_stops_before_the_step_whose_kl_is_too_large() -> None:
    settings = {"learning_rate": 0.05, "epochs": 10, "seed": 1}
    free, bound = (make_ppo(VECTOR, ACTIONS["discrete"], **settings, target_kl=kl) for kl in (None, 0.01))
    polls: dict[PPO, int] = {free: 0, bound: 0}
    kls: list[float] = []
    gradient = bound._gradient

    def watched(*args: Any) -> Any:
        measured = gradient(*args)
        kls.append(measured.approx_kl)
        return measured

    bound._gradient = watched  # type: ignore[method-assign]
    for agent in (free, bound):

        def count(agent: PPO = agent) -> None:
            polls[agent] += 1

        agent.update(random_rollout(agent, ACTIONS["discrete"]), 0.0, count)
    assert polls[free] == 40
    assert 1 < polls[bound] == len(kls) < 40
    assert kls[-1] > 1.5 * 0.01 >= max(kls[:-1])
    assert bound.state.optimizer.steps == len(kls) - 1
    assert bound.state.cursor is None


def test_gradients_are_clipped_over_all_parameters_jointly() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], batch_size=32, epochs=1, max_grad_norm=0.01)
    metrics = ppo.update(random_rollout(ppo, ACTIONS["box"]), 0.0, go_on)
    assert metrics["train/gradient_norm"] > 0.1
    assert float(ppo.parameters.gradient.norm()) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"), [("constant", 0.9, 0.2), ("linear", 0.0, 0.2), ("linear", 0.75, 0.05)]
)
def test_schedules_are_functions_of_progress(schedule: Any, progress: float, expected: float) -> None:
    assert module.anneal(0.2, schedule, progress) == pytest.approx(expected)


def infinite_ratio_of_a_good_action(ppo: PPO, buffer: RolloutBuffer) -> None:
    """The clip keeps the loss finite, and the gradient is 0 * inf."""
    buffer.advantages[:], buffer.advantages[0, 0], buffer.logprobs[0, 0] = -1.0, 5.0, -200.0


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda ppo, buffer: buffer.advantages.fill(np.nan), "policy_loss is not finite"),
        (lambda ppo, buffer: buffer.returns.fill(np.inf), "value_loss is not finite"),
        (lambda ppo, buffer: buffer.returns.fill(1e19), "value_loss is not finite"),  # its square is infinite
        (lambda ppo, buffer: buffer.logprobs.fill(-200), "policy_loss is not finite"),  # an infinite ratio
        (infinite_ratio_of_a_good_action, r"gradient of mlps\.weights\.0 is not finite"),
    ],
)
def test_what_is_not_finite_is_named_and_the_weights_stay(spoil: Any, named: str) -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], batch_size=32)
    buffer = random_rollout(ppo, ACTIONS["box"])
    spoil(ppo, buffer)
    before = ppo.parameters.vector.clone()
    with pytest.raises(NumericError, match=named):
        ppo.update(buffer, 0.0, go_on)
    assert torch.equal(ppo.parameters.vector, before)


def test_a_gradient_whose_norm_alone_overflows_is_reported() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"])
    with pytest.raises(NumericError, match="gradient of all parameters together is not finite"):
        ppo._require_finite(module.Measurements(gradient_norm=math.inf))


def test_a_weight_that_overflows_is_named() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], learning_rate=1e37, batch_size=32, epochs=1)
    ppo.state.optimizer.load_state_dict(
        {"steps": 0, "mean": torch.full_like(ppo.parameters.vector, 1e3), "square": ppo.parameters.vector * 0}
    )
    with pytest.raises(NumericError, match=r"weight \S+ is NaN or infinite"):
        ppo.update(random_rollout(ppo, ACTIONS["box"]), 0.0, go_on)


def test_acting_draws_from_the_policy_and_greedy_takes_its_mode() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"])
    observations = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    actions, logprobs, values = ppo.act(observations)
    assert (actions.shape, logprobs.shape, values.shape) == ((50, 2), (50,), (50,))
    assert abs(actions).max() > 2.0  # unclipped: the space ends at 2
    np.testing.assert_array_equal(values, ppo.value(observations))
    mode = ppo.act_greedy(observations)
    np.testing.assert_array_equal(mode, ppo.act_greedy(observations))
    np.testing.assert_allclose(logprobs, -0.5 * np.square(actions - mode).sum(1) - math.log(2 * math.pi), atol=1e-4)


def test_the_seed_decides_weights_actions_and_minibatches() -> None:
    runs = []
    for seed in (1, 1, 2):
        ppo = make_ppo(VECTOR, ACTIONS["discrete"], seed=seed)
        ppo.update(random_rollout(ppo, ACTIONS["discrete"]), 0.0, go_on)
        runs.append(ppo.parameters.vector)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_looking_at_values_or_greedy_actions_changes_no_draw() -> None:
    observations = np.ones((4, 3), np.float32)
    quiet, looking = (make_ppo(VECTOR, ACTIONS["box"]) for _ in range(2))
    looking.value(observations)
    looking.act_greedy(observations)
    np.testing.assert_array_equal(quiet.act(observations)[0], looking.act(observations)[0])


def test_weights_of_another_network_are_refused() -> None:
    small, large = make_ppo(VECTOR, ACTIONS["box"]), make_ppo(VECTOR, ACTIONS["box"], network={"hidden": [8, 8]})
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_policy_state(large.policy_state())


@pytest.mark.parametrize("space", [*ACTIONS.values(), gym.spaces.Box(-np.inf, np.inf, (1,))])
def test_spaces_that_ppo_trains_on(space: gym.Space) -> None:
    assert check_spaces(VECTOR, space) == []


def test_spaces_that_ppo_refuses_are_named_each() -> None:
    faults = check_spaces(gym.spaces.Text(3), gym.spaces.Tuple([gym.spaces.Discrete(2)]))
    assert len(faults) == 2
    assert faults[0].startswith("observation space Text")
    assert faults[1].startswith("action space Tuple")
