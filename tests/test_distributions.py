"""Action distributions, compared with torch's, with closed forms, and with the frequencies of samples."""

import math
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import stats

from rl_training.networks import distributions
from rl_training.networks.backend import Backend
from rl_training.networks.distributions import Distribution, make_distribution
from tests.network_parts import BACKENDS

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (40, 5)).astype(np.float32)


def bound(distribution: Distribution, backend: Backend = BACKENDS["numpy"]) -> Distribution:
    """A distribution that computes, its own parameters with gradients."""
    for parameter in distribution.parameters():
        parameter.grad = torch.zeros_like(parameter)
    distribution.bind(backend)
    return distribution


def Categorical(n: int) -> Distribution:
    return bound(distributions.Categorical(n))


def MultiCategorical(choices: list[int]) -> Distribution:
    return bound(distributions.MultiCategorical(choices))


def Bernoulli(bits: int) -> Distribution:
    return bound(distributions.Bernoulli(bits))


def DiagGaussian(dims: int, log_std: float) -> Distribution:
    return bound(distributions.DiagGaussian(dims, log_std))


def torch_twin(distribution: Distribution, outputs: torch.Tensor) -> list[torch.distributions.Distribution]:
    """The same in torch.distributions, one for each column of actions."""
    match distribution:
        case distributions.Categorical():
            return [torch.distributions.Categorical(logits=outputs)]
        case distributions.MultiCategorical():
            return [torch.distributions.Categorical(logits=part) for part in outputs.split([2, 3], dim=1)]
        case distributions.Bernoulli():
            return [torch.distributions.Bernoulli(logits=column) for column in outputs.unbind(1)]
        case distributions.DiagGaussian():
            std = distribution.log_std.exp()
            return [torch.distributions.Normal(column, std[a]) for a, column in enumerate(outputs.unbind(1))]
    raise AssertionError


def by_torch(distribution: Distribution, outputs: torch.Tensor, actions: np.ndarray) -> tuple[Any, Any]:
    """Log-probabilities and entropies by torch.distributions."""
    twins, columns = torch_twin(distribution, outputs), torch.from_numpy(actions).reshape(len(actions), -1).unbind(1)
    log_prob = sum(twin.log_prob(column.to(outputs.dtype)) for twin, column in zip(twins, columns, strict=True))
    return log_prob, sum(twin.entropy() for twin in twins)


def gaussian() -> Distribution:
    distribution = DiagGaussian(5, 0.0)
    with torch.no_grad():
        distribution.log_std.copy_(torch.linspace(-1.5, 0.5, 5))
    return distribution


def draw(distribution: Distribution, outputs: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Actions drawn from a seed, with their log-probabilities."""
    noise = distribution.draw_noise(1, len(outputs), np.random.default_rng(seed))
    actions = distribution.choose(outputs, noise[0])
    return actions, distribution.log_probs(outputs[None], actions[None], noise)[0]


FAMILIES = {
    "categorical": (lambda: Categorical(5), np.int64, (40,)),
    "multi_categorical": (lambda: MultiCategorical([2, 3]), np.int64, (40, 2)),
    "bernoulli": (lambda: Bernoulli(5), np.int8, (40, 5)),
    "gaussian": (gaussian, np.float32, (40, 5)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_log_prob_and_entropy_equal_torch(family: str) -> None:
    make, dtype, shape = FAMILIES[family]
    distribution = make()
    actions, drawn_log_prob = draw(distribution, LOGITS, seed=1)
    assert (actions.dtype, actions.shape, drawn_log_prob.dtype) == (dtype, shape, np.float32)
    judged = distribution.evaluate_actions(LOGITS, actions)
    log_prob, entropy = by_torch(distribution, torch.from_numpy(LOGITS), actions)
    np.testing.assert_allclose(judged.logprobs_B, log_prob.detach().numpy(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(judged.entropies_B, entropy.detach().numpy(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(drawn_log_prob, log_prob.detach().numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_autograd(family: str, name: str) -> None:
    backend, distribution = BACKENDS[name], FAMILIES[family][0]()
    bound(distribution.double(), backend)
    outputs = torch.from_numpy(LOGITS.astype(np.float64)).requires_grad_()
    actions = distribution.sample(LOGITS, np.random.default_rng(1))
    weights = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_prob, entropy = by_torch(distribution, outputs, actions)
    wanted = [outputs, *distribution.parameters()]
    expected = torch.autograd.grad((weights * log_prob).sum() + 0.3 * entropy.sum(), wanted)
    judged = distribution.evaluate_actions(backend.view(outputs), backend.array(actions))
    for _ in range(2):  # parameters' gradients are overwritten and not added to
        d_outputs = backend.tensor(judged.backward(backend.view(weights), 0.3))
    for got, want in zip([d_outputs, *(p.grad for p in distribution.parameters())], expected, strict=True):
        assert float((got - want).norm()) <= 1e-10 * float(want.norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_mode_is_the_most_probable_action(family: str) -> None:
    make, dtype, shape = FAMILIES[family]
    distribution = make()
    mode = distribution.mode(LOGITS)
    assert (mode.dtype, mode.shape) == (dtype, shape)
    best = distribution.evaluate_actions(LOGITS, mode).logprobs_B
    for seed in range(20):
        _, drawn = draw(distribution, LOGITS, seed)
        assert (drawn <= best + 1e-5).all()


def test_closed_forms() -> None:
    def judge(distribution: Distribution, outputs: np.ndarray, actions: np.ndarray) -> tuple[float, float]:
        judged = distribution.evaluate_actions(outputs, actions)
        return judged.logprobs_B.item(), judged.entropies_B.item()

    uniform = np.zeros((1, 4), np.float32)
    assert judge(Categorical(4), uniform, np.array([2])) == pytest.approx((-math.log(4), math.log(4)))
    assert judge(MultiCategorical([2, 2]), uniform, np.array([[0, 1]])) == pytest.approx((-math.log(4), math.log(4)))
    four_bits = judge(Bernoulli(4), uniform, np.array([[0, 1, 1, 0]], np.int8))
    assert four_bits == pytest.approx((-4 * math.log(2), 4 * math.log(2)))
    # two dims, deviation 2, each one deviation from its mean
    log_prob, entropy = judge(DiagGaussian(2, math.log(2.0)), np.float32([[0, 0]]), np.float32([[2, 2]]))
    assert log_prob == pytest.approx(2 * (-0.5 - math.log(2) - 0.5 * math.log(2 * math.pi)))
    assert entropy == pytest.approx(2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(2)))


def test_the_entropy_is_the_mean_of_minus_the_log_probability() -> None:
    logits = np.float32([[0.3, -1.0, 2.0, 0.7]])
    for distribution, choices in ((MultiCategorical([2, 2]), [2, 2]), (Bernoulli(4), [2] * 4), (Categorical(4), [4])):
        actions = np.array(list(product(*(range(n) for n in choices)))).squeeze()
        judged = distribution.evaluate_actions(np.repeat(logits, len(actions), 0), actions)
        probs = np.exp(judged.logprobs_B)
        assert probs.sum() == pytest.approx(1.0, abs=1e-6)
        assert -(probs * judged.logprobs_B).sum() == pytest.approx(judged.entropies_B[0], abs=1e-6)


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    return float(stats.chisquare(counts, probabilities * counts.sum()).pvalue)


def test_categorical_frequencies() -> None:
    logits = np.array([0.0, 1.0, -2.0, 0.5], np.float32)
    actions = Categorical(4).sample(np.tile(logits, (40_000, 1)), np.random.default_rng(5))
    assert chi_square_p(np.bincount(actions, minlength=4), np.exp(logits) / np.exp(logits).sum()) > 1e-4


def test_multi_categorical_frequencies_are_joint_products() -> None:
    logits = np.array([0.0, 1.0, -1.0, 0.5, 0.2], np.float32)
    first, second = (np.exp(part) / np.exp(part).sum() for part in (logits[:2], logits[2:]))
    actions = MultiCategorical([2, 3]).sample(np.tile(logits, (40_000, 1)), np.random.default_rng(6))
    assert (
        chi_square_p(np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6), np.outer(first, second).ravel())
        > 1e-4
    )


def test_bernoulli_frequencies_are_joint_products() -> None:
    logits = np.array([1.2, -0.4], np.float32)
    p, q = 1 / (1 + np.exp(-logits))
    actions = Bernoulli(2).sample(np.tile(logits, (40_000, 1)), np.random.default_rng(7))
    joint = np.array([(1 - p) * (1 - q), (1 - p) * q, p * (1 - q), p * q])
    assert chi_square_p(np.bincount(2 * actions[:, 0] + actions[:, 1], minlength=4), joint) > 1e-4


def test_gaussian_draws_have_the_mean_and_deviation() -> None:
    distribution = DiagGaussian(2, math.log(0.5))
    actions = distribution.sample(np.tile(np.float32([3.0, -1.0]), (20_000, 1)), np.random.default_rng(8))
    for column, mean in zip(actions.T, (3.0, -1.0), strict=True):
        assert stats.kstest(column, "norm", args=(mean, 0.5)).pvalue > 1e-4
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_extreme_logits_stay_finite_and_impossible_actions_are_not_drawn() -> None:
    logits = np.array([[500.0, -500.0, -500.0, 400.0]], np.float32)
    for distribution in (Categorical(4), MultiCategorical([2, 2]), Bernoulli(4)):
        actions, log_prob = draw(distribution, np.repeat(logits, 1000, axis=0), seed=2)
        assert len(np.unique(actions, axis=0)) == 1
        assert log_prob.tolist() == [0.0] * 1000
        judged = distribution.evaluate_actions(logits, actions[:1])
        assert (judged.logprobs_B.item(), judged.entropies_B.item()) == pytest.approx((0.0, 0.0), abs=1e-30)


def test_the_same_stream_draws_the_same_actions() -> None:
    for make, _, _ in FAMILIES.values():
        first, second = (make().sample(LOGITS, np.random.default_rng(11)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("space", "kind", "outputs"),
    [
        (gym.spaces.Discrete(3, start=-1), distributions.Categorical, 3),
        (gym.spaces.MultiDiscrete([[2, 3], [4, 5]]), distributions.MultiCategorical, 14),
        (gym.spaces.MultiBinary((2, 3)), distributions.Bernoulli, 6),
        (gym.spaces.Box(-1, 1, (2, 2)), distributions.DiagGaussian, 4),
    ],
)
def test_each_action_space_has_its_distribution(space: gym.Space, kind: type, outputs: int) -> None:
    distribution = make_distribution(space, initial_log_std=-0.5)
    assert type(distribution) is kind
    assert distribution.outputs == outputs
    if isinstance(distribution, distributions.DiagGaussian):
        assert distribution.metrics() == {"std": pytest.approx(math.exp(-0.5))}


def test_a_space_without_a_distribution_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no distribution over Text.*expected Discrete"):
        make_distribution(gym.spaces.Text(4), initial_log_std=0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_of_steps_has_the_bits_of_its_steps(family: str) -> None:
    distribution, block, single = FAMILIES[family][0](), *(np.random.default_rng(4) for _ in range(2))
    outputs = RNG.normal(0, 2, (7, 40, 5)).astype(np.float32)
    noise = distribution.draw_noise(7, 40, block)
    np.testing.assert_array_equal(noise, np.concatenate([distribution.draw_noise(1, 40, single) for _ in range(7)]))
    assert block.bit_generator.state == single.bit_generator.state
    actions = np.stack([distribution.choose(*step) for step in zip(outputs, noise, strict=True)])
    together = distribution.log_probs(outputs, actions, noise)
    apart = [distribution.log_probs(outputs[t : t + 1], actions[t : t + 1], noise[t : t + 1]) for t in range(7)]
    assert together.tobytes() == np.concatenate(apart).tobytes()


def test_the_largest_sum_of_logit_and_noise_wins_the_first_race_of_exponential_times() -> None:
    logits = np.log(np.float32([[0.2, 0.5, 0.3]]))
    times = np.random.default_rng(9).standard_exponential((1_000, 1, 3))
    noise = Categorical(3).draw_noise(1_000, 1, np.random.default_rng(9))
    first = (times / np.exp(logits)).argmin(axis=2)  # the first event of Poisson processes with these rates
    assert [Categorical(3).choose(logits, each).tolist() for each in noise] == first.tolist()
