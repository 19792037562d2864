"""The flat parameter vector, its optimiser, the written-out MLP and the network bodies."""

import copy
import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.errors import CheckpointError
from rl_training.networks.actor_critic import ActorCritic
from rl_training.networks.adam import FlatAdam
from rl_training.networks.backend import Backend, backend_of, softplus
from rl_training.networks.distributions import Categorical, DiagGaussian
from rl_training.networks.feature_extractors import ImageExtractor, MixedExtractor, make_feature_extractor, to_arrays
from rl_training.networks.flat import FlatParameters
from rl_training.networks.initialization import orthogonal_
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.observed_mlp import ObservedMLP
from tests.network_parts import BACKENDS, CPU, by_autograd, reference, to_tensors

MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 5, 5)), ("map", np.uint8, (2, 36, 36))])


def make_stack(hidden: tuple[int, ...] = (8, 6), activation: str = "tanh", seed: int = 0) -> StackedMLP:
    return StackedMLP(5, hidden, (3, 1), activation, (0.01, 1.0), np.random.default_rng(seed))


def make_network(kind: str, shape: tuple[int, ...], dtype: type, seed: int = 0) -> ActorCritic:
    layout = SimpleNamespace(kind=kind, shape=shape, dtype=np.dtype(dtype))
    return ActorCritic(layout, Categorical(3), (16, 8), "tanh", np.random.default_rng(seed))


# Backends.


def test_numpy_computes_on_the_cpu_and_torch_elsewhere() -> None:
    assert backend_of(CPU).xp is np
    assert backend_of(torch.device("cuda")).xp is torch


@pytest.mark.parametrize("name", BACKENDS)
def test_arrays_go_in_and_out_on_the_same_memory(name: str) -> None:
    backend, given, tensor = BACKENDS[name], np.arange(3.0), torch.zeros(3)
    array = backend.array(given)
    assert backend.numpy(array) is given or np.shares_memory(backend.numpy(array), given)
    view = backend.view(tensor)
    view[1] = 5.0
    assert tensor.tolist() == backend.tensor(view).tolist() == [0.0, 5.0, 0.0]
    assert backend.floats([array.sum(), array.mean()]) == [3.0, 1.0]
    assert backend.rows(3).tolist() == [0, 1, 2]
    numbers = backend.numbers(array > 0.5, view)
    assert (numbers.tolist(), numbers.dtype) == ([0.0, 1.0, 1.0], view.dtype)


def test_places_zeros_and_means_are_those_of_the_matrix(backend: Backend) -> None:
    x = backend.array(np.arange(12, dtype=np.float32).reshape(4, 3))
    places = backend.row_starts(4, 3) + backend.array(np.array([2, 0, 1, 1]))
    zeros = backend.zeros_like(x)
    zeros.reshape(-1)[places] = x.reshape(-1)[places]
    expected = np.float32([[0, 0, 2], [3, 0, 0], [0, 7, 0], [0, 10, 0]])
    assert np.array_equal(backend.numpy(zeros), expected)
    assert float(backend.mean(x.reshape(-1)[places])) == (2 + 3 + 7 + 10) / 4


@pytest.mark.parametrize("name", BACKENDS)
def test_softplus_is_exact_at_extremes(name: str) -> None:
    backend = BACKENDS[name]
    got = softplus(backend.xp, backend.array(np.array([-1e3, -40.0, 0.0, 1.0, 1e3]))).tolist()
    assert got == pytest.approx([0.0, math.exp(-40), math.log(2), math.log1p(math.e), 1e3], rel=1e-14)


# The flat vector.


def test_parameters_and_gradients_are_aligned_views_of_two_vectors() -> None:
    stack = make_stack()
    before = {name: p.detach().clone() for name, p in stack.named_parameters()}
    flat = FlatParameters(stack, CPU)
    for name, parameter in stack.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name], rtol=0, atol=0)
        for tensor, vector in ((parameter, flat.vector), (parameter.grad, flat.gradient)):
            assert tensor.data_ptr() % 64 == 0
            assert tensor.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
    flat.vector.fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in stack.parameters())


def test_backward_fills_the_flat_gradient_and_the_gaps_stay_zero() -> None:
    stack = make_stack()
    flat = FlatParameters(stack, CPU)
    adam = FlatAdam(flat.vector)
    x = np.random.default_rng(0).standard_normal((7, 5), np.float32)
    for _ in range(3):
        outputs = stack.bound.evaluate(x)
        stack.bound.backpropagate(x, [2 * output for output in outputs])  # of the sum of squares
        adam.step(flat.vector, flat.gradient, 0.1)
    used = sum(p.numel() for p in stack.parameters())
    assert int((flat.vector != 0).sum()) == int((flat.gradient != 0).sum()) == used < len(flat.vector)
    norms = [float(p.grad.norm()) for p in stack.parameters()]
    assert math.sqrt(flat.squared_gradient_norm()) == pytest.approx(math.hypot(*norms), rel=1e-6)


def test_clipping_scales_all_gradients_by_one_factor_and_only_down() -> None:
    stack = make_stack()
    flat = FlatParameters(stack, CPU)
    flat.gradient.fill_(3.0)
    norm = math.sqrt(flat.squared_gradient_norm())
    flat.clip_gradient(norm, max_norm=norm * 2)
    assert float(flat.gradient.norm()) == pytest.approx(norm)
    flat.clip_gradient(norm, max_norm=0.5)
    assert float(flat.gradient.norm()) == pytest.approx(0.5, rel=1e-6)
    assert float(flat.gradient.min()) == float(flat.gradient.max())


def test_saved_weights_are_independent_and_load_back() -> None:
    stack, other = make_stack(seed=0), make_stack(seed=1)
    flat, other_flat = FlatParameters(stack, CPU), FlatParameters(other, CPU)
    state = flat.state_dict()
    file = io.BytesIO()
    torch.save({"one": state["weights.0"]}, file)
    assert len(file.getvalue()) < 4_000  # not the complete vector
    kept = flat.vector.clone()
    other_flat.load_state_dict(state)
    torch.testing.assert_close(other_flat.vector, kept, rtol=0, atol=0)
    flat.vector.zero_()
    assert bool((state["weights.0"] != 0).all())


def test_weights_of_another_network_are_refused_by_name() -> None:
    flat, other = FlatParameters(make_stack((8, 6)), CPU), FlatParameters(make_stack((8, 7)), CPU)
    kept = flat.vector.clone()
    with pytest.raises(CheckpointError, match=r"weights.1: got \(2, 8, 7\), expected \(2, 8, 6\)"):
        flat.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match=r"weights.1: got none, expected \(2, 8, 6\)"):
        flat.load_state_dict(FlatParameters(make_stack((8,)), CPU).state_dict())
    torch.testing.assert_close(flat.vector, kept, rtol=0, atol=0)


def test_a_copy_that_would_lose_the_shared_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="construct a second network"):
        copy.deepcopy(FlatParameters(make_stack(), CPU))


def test_the_non_finite_tensor_is_named() -> None:
    stack = make_stack()
    flat = FlatParameters(stack, CPU)
    assert flat.non_finite_parameter() is flat.non_finite_gradient() is None
    stack.biases[1].grad[0, 0, 2] = math.inf
    assert flat.non_finite_gradient() == "biases.1"
    with torch.no_grad():
        stack.head_weights[1][0, 0] = math.nan
    assert flat.non_finite_parameter() == "head_weights.1"


# Adam.


def test_adam_equals_torch_over_many_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    ours, theirs = start.clone(), nn.Parameter(start.clone())
    adam, reference_adam = FlatAdam(ours, epsilon=1e-5), torch.optim.Adam([theirs], eps=1e-5)
    for step in range(500):
        gradient = torch.randn(50, generator=generator) * 10.0 ** ((step % 7) - 4)
        rate = 1e-2 * (1 - step / 500)
        adam.step(ours, gradient, rate)
        reference_adam.param_groups[0]["lr"] = rate
        theirs.grad = gradient
        reference_adam.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
    assert float((ours - start).abs().max()) > 0.1


def test_adam_moves_by_the_learning_rate_on_its_first_step() -> None:
    vector = torch.zeros(2)
    FlatAdam(vector).step(vector, torch.tensor([1e-3, -7.0]), 0.25)
    torch.testing.assert_close(vector, torch.tensor([-0.25, 0.25]), rtol=1e-4, atol=0)


def test_a_mean_that_has_decayed_is_zero_and_other_numbers_stay_denormal() -> None:
    vector = torch.zeros(40)  # as many as several vector registers hold
    adam = FlatAdam(vector)
    adam.load_state_dict({"steps": 10, "mean": torch.full((40,), 1e-38), "square": torch.zeros(40)})
    adam.step(vector, torch.zeros(40), 0.1)  # 0.9e-38 is denormal
    assert adam.mean.tolist() == [0.0] * 40
    assert float(np.float32(1e-38) * np.float32(0.5)) > 0.0
    assert float(torch.tensor(1e-38) * 0.5) > 0.0


def test_adam_continues_exactly_from_its_saved_state() -> None:
    gradients = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    whole, parts = torch.zeros(9), torch.zeros(9)
    first, second, uncut = FlatAdam(parts), FlatAdam(parts), FlatAdam(whole)
    for i in range(6):
        uncut.step(whole, gradients[i], 0.1)
        if i == 3:
            second.load_state_dict(first.state_dict())
        (first if i < 3 else second).step(parts, gradients[i], 0.1)
    assert torch.equal(whole, parts)


# Initial weights.


@pytest.mark.parametrize("shape", [(4, 64), (64, 64), (64, 2), (32, 3, 8, 8)])
def test_initial_weights_are_orthogonal_with_their_gain(shape: tuple[int, ...]) -> None:
    weight = torch.empty(shape, dtype=torch.float64)
    orthogonal_(weight, 1.7, np.random.default_rng(0))
    matrix = weight.flatten(1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(gram, 1.7**2 * torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=1e-12)


def test_gains_are_sqrt2_in_hidden_layers_and_as_asked_in_heads_and_biases_are_zero() -> None:
    stack = make_stack((64, 64))
    for weight in stack.weights:
        for network in weight:
            singular = torch.linalg.svdvals(network.detach())
            torch.testing.assert_close(singular, torch.full_like(singular, math.sqrt(2)), rtol=1e-5, atol=0)
    for weight, gain in zip(stack.head_weights, (0.01, 1.0), strict=True):
        singular = torch.linalg.svdvals(weight.detach())
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-5, atol=0)
    assert not any(bool(bias.any()) for bias in (*stack.biases, *stack.head_biases))


def test_initial_weights_come_from_the_given_stream_alone() -> None:
    torch.manual_seed(0)
    random_state = torch.get_rng_state()
    states = [FlatParameters(make_network("image", (1, 6, 6), np.uint8, seed), CPU).vector for seed in (3, 3, 4)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    assert torch.equal(torch.get_rng_state(), random_state)


# The written-out MLP.


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 6, 7)])
def test_written_out_gradients_equal_autograd(backend: Backend, hidden: tuple[int, ...], activation: str) -> None:
    stack = make_stack(hidden, activation).double()
    flat = FlatParameters(stack, CPU)
    generator = torch.Generator().manual_seed(1)
    flat.vector.add_(0.3 * torch.randn(flat.vector.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    d_outputs = [torch.randn(11, k, generator=generator, dtype=torch.float64) for k in (3, 1)]
    wanted = [x, *stack.parameters()]
    outputs = reference(stack, x)
    d_x, *expected = torch.autograd.grad(outputs, wanted, d_outputs)
    arrays, d_arrays = backend.view(x), [backend.view(d) for d in d_outputs]
    for columns in (None, slice(None), slice(3, None), slice(2)):  # buffers are used again, gradients overwritten
        for output, want in zip(stack.bound.evaluate(arrays), outputs, strict=True):
            torch.testing.assert_close(backend.tensor(output), want.detach(), rtol=1e-12, atol=1e-12)
        got = stack.bound.backpropagate(arrays, d_arrays, columns=columns)
        assert (got is None) == (columns is None)
        if got is not None:
            assert float((backend.tensor(got) - d_x[:, columns]).norm()) <= 1e-10 * float(d_x[:, columns].norm())
        for parameter, want in zip(stack.parameters(), expected, strict=True):
            assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm())
    flat.gradient.fill_(7.0)
    stack.bound.evaluate(arrays)
    stack.bound.backpropagate(arrays, d_arrays, parameters=False, columns=slice(1))
    assert bool((flat.gradient == 7.0).all())


def test_an_output_that_the_loss_leaves_out_has_zero_gradient(backend: Backend) -> None:
    stack = make_stack()
    FlatParameters(stack, CPU)
    x, ones, nothing = (backend.view(t) for t in (torch.ones(2, 5), torch.ones(2, 3), torch.zeros(2, 1)))
    stack.bound.evaluate(x)
    stack.bound.backpropagate(x, [ones, nothing])
    assert not stack.head_weights[1].grad.any()
    assert not stack.weights[0].grad[1].any()
    assert stack.weights[0].grad[0].any()


def test_batches_of_different_sizes_do_not_disturb_each_other() -> None:
    stack = make_stack()
    flat = FlatParameters(stack, CPU)
    rng = np.random.default_rng(0)
    large, small = rng.standard_normal((9, 5), np.float32), rng.standard_normal((2, 5), np.float32)
    d_outputs = [np.ones((9, 3), np.float32), np.ones((9, 1), np.float32)]
    stack.bound.evaluate(large)
    stack.bound.backpropagate(large, d_outputs)
    alone = flat.gradient.clone()
    policy, value = stack.bound.evaluate(large)
    kept = policy.copy(), value.copy()
    stack.bound.evaluate(small)
    np.testing.assert_array_equal(policy, kept[0])
    np.testing.assert_array_equal(value, kept[1])
    stack.bound.backpropagate(large, d_outputs)
    assert torch.equal(flat.gradient, alone)


@pytest.mark.parametrize("hidden", [(), (16,), (32, 32), (256, 256)])
@pytest.mark.parametrize("outputs", [(3,), (1, 3)])
def test_batches_in_blocks_have_the_outputs_of_each_batch_by_itself(
    hidden: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    stack = StackedMLP(4, hidden, outputs, "relu", [1.0] * len(outputs), np.random.default_rng(0))
    FlatParameters(stack, CPU).vector.add_(0.1)  # so that biases count
    for groups in (3, 1, 4, 2):  # in any order, on the same buffers
        x = np.random.default_rng(groups).standard_normal((groups, 64, 4), np.float32)
        each = [[output.copy() for output in stack.bound.evaluate(batch)] for batch in x]
        got = stack.bound.evaluate_blocks(x)
        assert [output.shape for output in got] == [(groups, 64, k) for k in outputs]
        for s, output in enumerate(got):
            assert np.array_equal(output, [alone[s] for alone in each])


def test_a_network_sees_every_change_of_its_parameters() -> None:
    stack = make_stack()
    flat, x = FlatParameters(stack, CPU), np.ones((8, 5), np.float32)
    for _ in range(2):
        flat.vector += 0.05
        for got, want in zip(stack.bound.evaluate(x), reference(stack, torch.from_numpy(x)), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6)


# Bodies.


@pytest.mark.parametrize(
    ("shape", "features"),
    [
        ((4, 84, 84), 64 * 7 * 7),  # Nature: 84 -> 20 -> 9 -> 7
        ((1, 36, 40), 64 * 1 * 1),  # 36 -> 8 -> 3 -> 1, 40 -> 9 -> 3 -> 1
        ((3, 35, 90), 64 * 9 * 23),  # small: 35 -> 35 -> 18 -> 9
        ((3, 7, 7), 64 * 2 * 2),
        ((1, 1, 1), 64),
    ],
)
def test_image_features_by_size(shape: tuple[int, ...], features: int) -> None:
    body = ImageExtractor(shape, np.random.default_rng(0))
    assert body.features == features
    assert body(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, features)


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 36, 40), (3, 12, 16), (2, 6, 6), (1, 1, 1)])
def test_features_and_gradients_of_images_are_those_of_plain_convolutions(shape: tuple[int, ...]) -> None:
    body, rng = ImageExtractor(shape, np.random.default_rng(0)), np.random.default_rng(1)
    for count in (3, 8, 5):  # the memory of the floats grows once, and is used again in part
        images = torch.from_numpy(rng.integers(0, 256, (count, *shape), np.uint8))
        d_features = torch.from_numpy(rng.standard_normal((count, body.features)))
        exact = [parameter.detach().double().requires_grad_() for parameter in body.parameters()]
        x = images.double() / 255
        for (_, _, stride, padding), weight, bias in zip(body.layers, exact[:3], exact[3:], strict=True):
            x = torch.relu(nn.functional.conv2d(x, weight, bias, stride, padding))
        features = body(images)
        torch.testing.assert_close(features.double(), x.flatten(1), rtol=1e-4, atol=1e-5)
        wanted = torch.autograd.grad(x.flatten(1), exact, d_features)
        found = torch.autograd.grad(features, list(body.parameters()), d_features.float())
        for got, want in zip(found, wanted, strict=True):
            assert float((got - want).norm()) <= 1e-4 * float(want.norm())


def test_a_backward_pass_whose_images_were_overwritten_is_refused() -> None:
    body = ImageExtractor((1, 6, 6), np.random.default_rng(0))
    first = body(torch.zeros(2, 1, 6, 6, dtype=torch.uint8))
    body(torch.ones(2, 1, 6, 6, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_images_are_scaled_to_one() -> None:
    body = ImageExtractor((1, 1, 1), np.random.default_rng(0))
    weight = body.weights[0][:, 0, 1, 1]
    first = torch.relu(weight)  # a pixel of 255 is 1.0
    second = torch.relu(body.weights[1][:, :, 1, 1] @ first)
    third = torch.relu(body.weights[2][:, :, 1, 1] @ second)
    torch.testing.assert_close(body(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8))[0], third, rtol=1e-4, atol=1e-6)


def test_mixed_features_are_those_of_each_image_and_the_vector() -> None:
    layout = SimpleNamespace(kind="mixed", shape=(), dtype=MIXED)
    body = make_feature_extractor(layout, np.random.default_rng(0))
    assert isinstance(body, MixedExtractor)
    assert body.features == 64 * 2 * 2 + 64 * 1 * 1 + 3
    observations = np.zeros(4, MIXED)
    observations["vector"] = np.arange(12).reshape(4, 3)
    observations["camera"][1] = 255
    features = body(to_arrays(observations, backend_of(CPU)))
    assert features.shape == (4, body.features)
    np.testing.assert_array_equal(features[:, -3:].numpy(force=True), observations["vector"])
    assert torch.equal(features[2, :-3], features[3, :-3])
    assert not torch.equal(features[1, :-3], features[2, :-3])


def test_a_mixed_observation_may_have_no_vector() -> None:
    dtype = np.dtype([("camera", np.uint8, (1, 5, 5))])
    body = make_feature_extractor(SimpleNamespace(kind="mixed", shape=(), dtype=dtype), np.random.default_rng(0))
    assert body(to_arrays(np.zeros(2, dtype), backend_of(CPU))).shape == (2, body.features) == (2, 256)


# Policy and value.


def test_vectors_share_nothing_and_images_share_their_convolutions() -> None:
    nothing, ones = np.zeros((2, 3), np.float32), np.ones((2, 1), np.float32)
    vector = make_network("vector", (4,), np.float32)
    FlatParameters(vector, CPU)
    vector(np.ones((2, 4), np.float32))
    vector.backward(nothing, ones)
    assert not vector.mlps.weights[0].grad[0].any()
    assert vector.mlps.weights[0].grad[1].any()
    image = make_network("image", (1, 6, 6), np.uint8)
    FlatParameters(image, CPU)
    for d_outputs in ((nothing + 1, 0 * ones), (nothing, ones)):
        image(torch.full((2, 1, 6, 6), 9, dtype=torch.uint8))
        image.backward(*d_outputs)
        assert image.body.weights[0].grad.any()


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [("vector", (4,), np.float32), ("image", (2, 6, 6), np.uint8), ("mixed", (), MIXED)],
)
def test_acting_gives_what_learning_sees(backend: Backend, kind: str, shape: tuple[int, ...], dtype: type) -> None:
    network = make_network(kind, shape, dtype)
    FlatParameters(network, CPU)
    observations = observations_of(shape, dtype)
    outputs, values = network.act(observations)
    expected_outputs, expected_values = by_autograd(network, to_tensors(observations))
    np.testing.assert_allclose(outputs, expected_outputs.numpy(force=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(values, expected_values.numpy(force=True)[:, 0], rtol=1e-5, atol=1e-5)
    assert (outputs.shape, values.shape, values.dtype) == ((5, 3), (5,), np.float32)


def test_values_stay_when_the_network_acts_again() -> None:
    network = make_network("vector", (4,), np.float32)
    FlatParameters(network, CPU)
    _, values = network.act(np.ones((2, 4), np.float32))
    kept = values.copy()
    network.act(np.full((2, 4), -3, np.float32))
    np.testing.assert_array_equal(values, kept)


def test_the_policys_own_parameters_are_in_the_vector() -> None:
    layout = SimpleNamespace(kind="vector", shape=(4,), dtype=np.dtype(np.float32))
    network = ActorCritic(layout, DiagGaussian(2, -0.5), (8,), "tanh", np.random.default_rng(0))
    flat = FlatParameters(network, CPU)
    assert flat.state_dict()["distribution.log_std"].tolist() == [-0.5, -0.5]
    flat.vector.zero_()
    actions = network.distribution.sample(np.zeros((1, 2), np.float32), np.random.default_rng(0))
    np.testing.assert_array_equal(actions, np.random.default_rng(0).standard_normal((1, 2), np.float32))


# MLPs on observations.


def make_observed(
    kind: str, shape: tuple[int, ...], dtype: type, further: int = 2, hidden: tuple[int, ...] = (16, 8)
) -> ObservedMLP:
    layout = SimpleNamespace(kind=kind, shape=shape, dtype=np.dtype(dtype))
    return ObservedMLP(layout, further, hidden, (3, 1), "relu", (1.0, 1.0), np.random.default_rng(0))


def observations_of(shape: tuple[int, ...], dtype: type, count: int = 5) -> np.ndarray:
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.random.default_rng(0).integers(0, 60, (count, size), np.uint8).view(dtype).reshape(count, *shape)


LAYOUTS = [("vector", (4,), np.float32), ("image", (2, 6, 6), np.uint8), ("mixed", (), MIXED)]


@pytest.mark.parametrize(("kind", "shape", "dtype"), LAYOUTS)
def test_an_observed_mlp_has_the_gradients_of_its_graph(
    backend: Backend, kind: str, shape: tuple[int, ...], dtype: type
) -> None:
    network = make_observed(kind, shape, dtype)
    FlatParameters(network, CPU)
    raw = observations_of(shape, dtype)
    further = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outputs = by_autograd(network, to_tensors(raw), further)
    d_outputs = [torch.ones_like(output) for output in outputs]
    d_further, *expected = torch.autograd.grad(outputs, [further, *network.parameters()], d_outputs)
    observations, d_arrays = to_arrays(raw, backend), [backend.view(d) for d in d_outputs]
    for _ in range(2):  # overwritten and not added to
        for got, want in zip(network(observations, backend.view(further)), outputs, strict=True):
            torch.testing.assert_close(backend.tensor(got), want.detach(), rtol=1e-5, atol=1e-5)
        network.backward(*d_arrays)
        for parameter, want in zip(network.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, want, rtol=1e-4, atol=1e-4)
    network.evaluate(observations, backend.view(further))
    got = backend.tensor(network.further_gradient(*d_arrays))
    torch.testing.assert_close(got, d_further, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [(16, 8), ()])
@pytest.mark.parametrize(("kind", "shape", "dtype"), LAYOUTS)
def test_the_first_mlp_alone_has_its_output_and_gradient(
    backend: Backend, kind: str, shape: tuple[int, ...], dtype: type, hidden: tuple[int, ...]
) -> None:
    network = make_observed(kind, shape, dtype, hidden=hidden)
    parameters = FlatParameters(network, CPU)
    raw = observations_of(shape, dtype)
    further = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    first = by_autograd(network, to_tensors(raw), further)[0]
    (expected,) = torch.autograd.grad(first, further, torch.ones_like(first))
    got = backend.tensor(network.evaluate_first(to_arrays(raw, backend), backend.view(further)))
    torch.testing.assert_close(got, first.detach(), rtol=1e-5, atol=1e-5)
    d_further = backend.tensor(network.first_further_gradient(backend.view(torch.ones_like(first))))
    torch.testing.assert_close(d_further, expected, rtol=1e-4, atol=1e-5)
    assert not parameters.gradient.any()


def test_a_backward_pass_must_follow_forward_and_nothing_else() -> None:
    network = make_observed("vector", (4,), np.float32)
    FlatParameters(network, CPU)
    x, further, *d_outputs = (np.ones((2, width), np.float32) for width in (4, 2, 3, 1))
    with pytest.raises(RuntimeError, match="must follow an evaluation"):
        network.further_gradient(*d_outputs)
    network(x, further)
    network.evaluate(x, further)
    with pytest.raises(RuntimeError, match="must follow `forward`"):
        network.backward(*d_outputs)
