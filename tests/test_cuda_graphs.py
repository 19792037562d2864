"""Functions that are recorded and replayed. `recorded_ops` stands in for the GPU."""

import logging

import pytest
import torch
from torch import Tensor

from rl_training.networks.cuda_graphs import CapturedFunction
from tests.recorded_ops import recorded_ops

CPU = torch.device("cpu")


def weighted(parts: dict[str, Tensor], offset: Tensor, weight: Tensor | float) -> tuple[Tensor, ...]:
    calls.append(offset.shape)
    total = parts["a"] * weight + parts["b"]
    return total + offset, total.sum()


calls: list[torch.Size] = []


def test_it_computes_with_the_values_of_each_call_and_is_recorded_once_for_each_shape() -> None:
    calls.clear()
    captured = CapturedFunction(weighted, recorded_ops, CPU)
    for weight in (2.0, -0.5):
        for count in (3, 2):
            parts = {"a": torch.arange(count) + weight, "b": torch.full((count,), 10.0 * weight)}
            vector, total = captured(parts, torch.ones(count), weight)
            expected, expected_total = weighted(parts, torch.ones(count), weight)
            assert vector.tolist() == expected.tolist()
            assert total.item() == expected_total.item()
    assert [shape.numel() for shape in calls].count(3) == 2 + 2  # for comparison, and to warm up and record
    assert len(calls) == 2 * (2 + 2)


def test_it_reads_inputs_from_memory_of_its_own_and_returns_the_same_memory() -> None:
    captured = CapturedFunction(lambda x: (x + 1,), recorded_ops, CPU)
    x = torch.zeros(2)
    (first,) = captured(x)
    x.fill_(7.0)
    assert first.tolist() == [1.0, 1.0]
    (second,) = captured(x)
    assert second is first
    assert second.tolist() == [8.0, 8.0]


def test_a_function_that_cannot_be_recorded_is_reported_once_and_computed_call_by_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    captured = CapturedFunction(lambda x: (x * x.sum().item(),), recorded_ops, CPU)
    with caplog.at_level(logging.WARNING):
        results = [captured(torch.full((2,), value))[0].tolist() for value in (1.0, 2.0)]
    assert results == [[2.0, 2.0], [8.0, 8.0]]
    (record,) = caplog.records
    assert "kernel by kernel" in record.message
    assert "waits for the device" in record.message
