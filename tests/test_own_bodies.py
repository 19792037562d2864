"""Bodies that the settings name: their weights, gradients and features, and what is refused before training."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from bodies import Normed

from rl_training.config.network import BodyConfig
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping
from rl_training.networks import flat
from rl_training.networks.backend import Backend
from rl_training.networks.feature_extractors import to_arrays
from rl_training.networks.flat import FlatParameters
from rl_training.networks.named_body.module_body import make_body
from rl_training.networks.observed_mlp import ObservedMLP
from rl_training.seeding import generator
from tests.network_parts import BACKENDS, CPU, by_autograd, to_tensors
from tests.off_policy_parts import CAMERA, choices, make_dqn, make_sac, moves, random_batch

MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 5, 5)), ("map", np.uint8, (2, 6, 6))])
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "bodies:Normed": ("vector", (4,), np.dtype(np.float32)),
    "bodies:Vectors": ("vector", (4,), np.dtype(np.float32)),
    "bodies:Frozen": ("vector", (4,), np.dtype(np.float32)),
    "bodies:Constants": ("vector", (4,), np.dtype(np.float32)),
    "bodies:Residual": ("image", (2, 6, 6), np.dtype(np.uint8)),
    "bodies:Parts": ("mixed", (), MIXED),
}
VECTORS = SimpleNamespace(kind="vector", shape=(4,), dtype=np.dtype(np.float32))
FEATURES = {
    "bodies:Normed": 6,
    "bodies:Vectors": 4,
    "bodies:Frozen": 6,
    "bodies:Constants": 6,
    "bodies:Residual": 4 * 6 * 6,
    "bodies:Parts": 3 + 4 * 5 * 5 + 4 * 6 * 6,
}


def make_network(name: str, **kwargs: Any) -> ObservedMLP:
    kind, shape, dtype = LAYOUTS[name]
    layout, body = SimpleNamespace(kind=kind, shape=shape, dtype=dtype), BodyConfig(name=name, kwargs=kwargs)
    return ObservedMLP(layout, 2, (8,), (3, 1), "tanh", (1.0, 1.0), generator(5, "init"), body)


def draw(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    rng, batch = np.random.default_rng(0), np.zeros((5, *shape), dtype)
    for part in [batch[name] for name in dtype.names or ()] or [batch]:
        part[...] = rng.integers(256, size=part.shape) if part.dtype == np.uint8 else rng.standard_normal(part.shape)
    return batch


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_gradients_are_those_of_autograd_through_the_whole_network(backend: Backend, name: str) -> None:
    network = make_network(name).double()
    FlatParameters(network, CPU)
    _, shape, dtype = LAYOUTS[name]
    raw = draw(shape, dtype)
    raw = raw.astype(np.float64) if name not in ("bodies:Residual", "bodies:Parts") else raw
    further = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    tensors = to_tensors(raw)
    if name == "bodies:Parts":
        tensors["vector"] = tensors["vector"].double()
    outputs = by_autograd(network, tensors, further)
    d_outputs = [torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output) for output in outputs]
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    d_further, *expected = torch.autograd.grad(outputs, [further, *learned], d_outputs)
    observations, d_arrays = to_arrays(raw, backend), [backend.view(d) for d in d_outputs]
    if name == "bodies:Parts":
        observations = {**observations, "vector": observations["vector"].double()}  # type: ignore[dict-item]
    for _ in range(2):  # overwritten and not added to
        for got, want in zip(network(observations, backend.view(further)), outputs, strict=True):
            torch.testing.assert_close(backend.tensor(got), want.detach(), rtol=1e-10, atol=1e-10)
        network.backward(*d_arrays)
        for parameter, want in zip(learned, expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, want, rtol=1e-10, atol=1e-10)
    network.evaluate(observations, backend.view(further))
    got = backend.tensor(network.further_gradient(*d_arrays))
    torch.testing.assert_close(got, d_further, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_number_of_features_is_found_with_a_batch(name: str) -> None:
    assert make_network(name).body.features == FEATURES[name]


def test_keyword_arguments_reach_the_class() -> None:
    assert make_network("bodies:Normed", width=9).body.features == 9


def test_the_seed_alone_decides_the_first_weights_and_torchs_own_state_stays() -> None:
    body = BodyConfig(name="bodies:Normed")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make_body(body, VECTORS, generator(5, "init")).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (make_body(body, VECTORS, generator(seed, "init")).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["module.linear.weight"], other["module.linear.weight"])


def test_the_layers_after_a_body_begin_as_they_do_without_one() -> None:
    built_in, own = (
        ObservedMLP(VECTORS, 0, (8,), (3,), "tanh", (1.0,), generator(5, "init"), body)
        for body in (None, BodyConfig(name="bodies:Vectors"))
    )
    expected, got = built_in.mlps.state_dict(), own.mlps.state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_module_that_learns_has_computed_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Normed] = []
    forward = Normed.forward
    monkeypatch.setattr(Normed, "forward", lambda self, x: [called.append(self), forward(self, x)][1])
    body = make_body(BodyConfig(name="bodies:Normed"), VECTORS, generator(5, "init"))
    assert called
    assert body.module not in called


def test_each_network_of_an_algorithm_has_a_body_of_its_own() -> None:
    settings = {"network": {"hidden": [8], "body": "bodies:Normed"}}
    sac = make_sac(**settings)
    weights = [network.body.module.linear.weight for network in (sac.actor, sac.critics, sac.target_critics)]  # type: ignore[union-attr]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])
    sac.update(random_batch(moves), 0.0)
    difference = 0.005 * (weights[1] - sac_before(settings)) + sac_before(settings)
    torch.testing.assert_close(weights[2], difference)  # Polyak averaging with tau = 0.005
    dqn = make_dqn(**settings)
    weights = [network.observed.body.module.linear.weight for network in (dqn.network, dqn.target_network)]  # type: ignore[union-attr]
    assert torch.equal(*weights)
    dqn.update(random_batch(choices), 0.0)
    assert not torch.equal(*weights)
    dqn.update_target()
    assert torch.equal(*weights)


def sac_before(settings: dict[str, Any]) -> torch.Tensor:
    weight: torch.Tensor = make_sac(**settings).critics.body.module.linear.weight  # type: ignore[union-attr, assignment]
    return weight


SPACES = {
    "bodies:Normed": gym.spaces.Box(-1, 1, (4,)),
    "bodies:Residual": gym.spaces.Box(0, 255, (6, 6, 1), np.uint8),
    "bodies:Parts": CAMERA,
}


@pytest.mark.parametrize("name", SPACES)
def test_every_backend_computes_the_same_update(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, gradients = random_batch(choices, SPACES[name]), []
    for backend in BACKENDS.values():
        monkeypatch.setattr(flat, "backend_of", lambda device, backend=backend: backend)
        dqn = make_dqn(SPACES[name], network={"hidden": [8], "body": name})
        for _ in range(2):  # the second time, recorded operations are repeated
            dqn._gradient(batch, 0.0)
        gradients.append(dqn.parameters.gradient)
    assert gradients[0].abs().max() > 0.01
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:Thing", r"nowhere_at_all:Thing: the module can't be imported: .*No module named"),
        ("bodies:Norm", r"bodies:Norm: bodies has no 'Norm'; did you mean Normed\?"),
        (
            "bodies:not_a_class",
            r"bodies:not_a_class is not a class of networks; expected a subclass of torch.nn.Module",
        ),
        ("bodies:Image", r"bodies:Image is not a class of networks"),
        (
            "bodies:Wrong",
            r"bodies:Wrong could not be made: TypeError: .*missing 1 required positional argument: 'fault'",
        ),
    ],
)
def test_a_class_that_can_not_be_made_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^network.body: {message}"):
        make_body(BodyConfig(name=name), VECTORS, generator(0, "init"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises in __init__", "could not be made: ValueError: no such layout"),
        ("lazy", "linear.weight has no size yet; expected layers of given sizes in place of lazy ones"),
        ("float64", "linear.weight is float64, expected float32"),
        ("numpy weights", "its first weights differ between two instances, expected the same ones from the same seed"),
        ("raises in forward", "failed on float32 [4, 4]: AttributeError: 'Wrong' object has no attribute 'missing'"),
        ("a list", "returned a list for float32 [4, 4], expected a tensor [B, F]"),
        ("one axis", "returned float32 [4] for float32 [4, 4], expected float32 [4, F], a row of F features for each"),
        ("transposed", "returned float32 [3, 4] for float32 [4, 4], expected float32 [4, F]"),
        ("no features", "returned float32 [4, 0] for float32 [4, 4], expected float32 [4, F]"),
        ("half", "returned float16 [4, 4] for float32 [4, 4], expected float32 [4, F]"),
        ("infinite", "returned a NaN or infinity for float32 [4, 4], expected finite features"),
        ("in place", "changed the observations that it was given, which other networks read too"),
        ("batch norm", "changed its buffer extra.running_mean as it computed, and a checkpoint holds parameters alone"),
        ("batch statistics", "returned features of an observation that depend on the others in its batch"),
        ("dropout", "returned different features for the same observations, expected the same ones each time"),
        ("detached", "can't learn, because its features have no gradient"),
        ("unused", "unused.weight gets no gradient; use it in forward, or set its requires_grad to False"),
        ("infinite slope", "the gradient of linear.weight has a NaN or infinity, expected finite numbers"),
        ("random buffer", "returned different features from another instance with the same parameters"),
        ("random attribute", "returned different features from another instance with the same parameters"),
    ],
)
def test_what_could_not_be_trained_or_restored_is_refused(fault: str, message: str) -> None:
    body = BodyConfig(name="bodies:Wrong", kwargs={"fault": fault})
    with pytest.raises(ConfigError) as refused:
        make_body(body, VECTORS, generator(0, "init"))
    text = str(refused.value)
    assert text.removeprefix("network.body: bodies:Wrong").lstrip(": ").startswith(message)
    assert "\n" not in text


def test_what_a_mixed_body_was_given_is_described_part_by_part() -> None:
    layout = SimpleNamespace(kind="mixed", shape=(), dtype=MIXED)
    words = (
        "returned a dict for a mapping of vector: float32 [4, 3], camera: uint8 [4, 1, 5, 5], map: uint8 [4, 2, 6, 6]"
    )
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_body(BodyConfig(name="bodies:Vectors"), layout, generator(0, "init"))


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_a_bare_text_is_the_class(algo: str) -> None:
    needed = {"algo": algo, "env_id": "CartPole-v1", "total_timesteps": 10_000}
    config: Any = config_from_mapping({**needed, "network": {"body": "a.b:C"}})
    assert config.network.body == BodyConfig(name="a.b:C", kwargs={})
    assert config == config_from_mapping(needed, {"network.body.name": "a.b:C"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Normed", r"network\.body: got the text \"Normed\", expected module:Class"),
        ({"name": "a:B", "kwargs": {"api_token": "x"}}, r"network\.body\.kwargs: got .*expected no secret"),
        ({"name": "a:B", "kwargs": {"path": "${env:HOME}"}}, r"network\.body\.kwargs: got .*expected no secret"),
        ({"name": "a:B", "width": 3}, r"network\.body\.width: unknown key"),
        ({"kwargs": {}}, r"network\.body\.name: is required and missing"),
    ],
)
def test_wrong_settings_of_a_body_are_named(body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_mapping({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100, "network": {"body": body}})
