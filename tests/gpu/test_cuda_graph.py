"""Updates as one CUDA graph, compared with the same kernels one by one and with the CPU: `make gpu-test`."""

import numpy as np
import pytest
import torch

from rl_training import TrainResult
from rl_training.networks import flat
from rl_training.networks.backend import Backend
from rl_training.networks.cuda_graphs import CapturedFunction
from rl_training.runtime.checkpoint import load_policy_state, open_checkpoint
from tests.trainings import TRAININGS

GPU = torch.device("cuda:0")


def weights(result: TrainResult) -> dict[str, np.ndarray]:
    assert result.checkpoint is not None
    state = load_policy_state(open_checkpoint(result.checkpoint))["weights"]
    return {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_graph_trains_as_the_kernels_one_by_one_and_as_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = []
    call = CapturedFunction.__call__

    def noted(self: CapturedFunction, *inputs: object) -> object:
        captured.append(self)
        return call(self, *inputs)

    monkeypatch.setattr(CapturedFunction, "__call__", noted)
    graph = weights(TRAININGS[name]("cuda"))
    assert captured
    assert not any(function._refused for function in captured)
    cpu = weights(TRAININGS[name]("cpu"))
    monkeypatch.setattr(flat, "backend_of", lambda device: Backend(device, torch))
    eager = weights(TRAININGS[name]("cuda"))
    for key in graph:
        np.testing.assert_allclose(graph[key], eager[key], rtol=0, atol=1e-6, err_msg=key)
        np.testing.assert_allclose(graph[key], cpu[key], rtol=0, atol=1e-3, err_msg=key)
