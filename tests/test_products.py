"""Matrix products of networks: the quicker of two libraries computes them, and rows without a gradient are left out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.networks import backend, workspace
from rl_training.networks.backend import LEAST_FOR_TORCH, Form, is_quicker_in_torch
from rl_training.networks.flat import FlatParameters
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.threads import PAYS, THREADS
from tests.network_parts import CPU

FORM = Form((2, 32, 64, 48), (True, False), 1)
BATCH = PAYS // 64**2 + 64
"""A batch that is large for layers of 64."""


def multiply_as_numpy(error: float) -> Callable[..., None]:
    """A product of torch that differs from numpy's by `error`."""

    def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        np.matmul(left.numpy(), right.numpy(), out=out.numpy())
        out[0, 0, 0] += error

    return multiply


@pytest.mark.parametrize(
    ("seconds", "error", "chosen"),
    [(0.9, 0.0, True), (0.98, 0.0, False), (2.0, 0.0, False), (0.9, 1e-5, False)],
    ids=["quicker and equal", "hardly quicker", "slower", "quicker and unequal"],
)
def test_torch_multiplies_if_it_is_quicker_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, seconds: float, error: float, chosen: bool
) -> None:
    clock = [0.0]
    multiply = multiply_as_numpy(error)

    def multiply_in_torch(*operands: torch.Tensor, out: torch.Tensor) -> None:
        multiply(*operands, out=out)
        clock[0] += seconds - 1.0

    def read_clock() -> float:
        clock[0] += 0.5
        return clock[0] * 2  # a call of numpy takes a second

    monkeypatch.setattr(backend.time, "thread_time", lambda: read_clock())
    monkeypatch.setattr(torch, "bmm", lambda *operands, out: multiply_in_torch(*operands, out=out))
    clock[0] = 0.0
    assert is_quicker_in_torch.__wrapped__(FORM) is chosen


def test_a_form_has_sizes_order_and_threads() -> None:
    left, right = torch.zeros(2, 64, 32).transpose(1, 2), torch.zeros(2, 64, 48)
    with THREADS.using(1):
        assert Form.of(left, right) == FORM


def make_stack(activation: str) -> tuple[StackedMLP, FlatParameters]:
    stack = StackedMLP(5, (64, 64), (1, 1), activation, (1.0, 1.0), np.random.default_rng(0))
    return stack, FlatParameters(stack, CPU)


def test_networks_compute_the_same_with_either_library(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, flat = make_stack("relu")
    rng, batch = np.random.default_rng(1), LEAST_FOR_TORCH // 64**2 + 1
    x, d_outputs = rng.standard_normal((batch, 5), np.float32), rng.standard_normal((2, batch, 1), np.float32)
    calls: list[tuple[int, ...]] = []
    bmm = torch.bmm

    def count(*operands: torch.Tensor, out: torch.Tensor) -> Any:
        calls.append(tuple(out.shape))
        return bmm(*operands, out=out)

    monkeypatch.setattr(torch, "bmm", count)
    results = []
    for by_torch in (False, True):
        monkeypatch.setattr(workspace, "is_quicker_in_torch", lambda form, answer=by_torch: answer)
        stack.bind(stack.bound.backend)
        outputs = [output.copy() for output in stack.bound.evaluate(x)]
        d_inputs = stack.bound.backpropagate(x, d_outputs, columns=slice(0, 5))
        results.append([*outputs, d_inputs, flat.gradient.numpy().copy()])
        flat.gradient.zero_()
    for numpys, torchs in zip(*results, strict=True):
        np.testing.assert_allclose(torchs, numpys, rtol=1e-4, atol=1e-5)
    # Forward, the upper layer's weights, and its inputs.
    assert calls == [(2, batch, 64), (2, 64, 64), (2, batch, 64)]
