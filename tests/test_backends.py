"""Training gives the same result with numpy and torch, up to rounding, and exactly the same with recorded calls."""

import numpy as np
import pytest
import torch

from rl_training.networks import flat
from rl_training.runtime.checkpoint import load_policy_state, open_checkpoint
from tests.network_parts import BACKENDS
from tests.trainings import TRAININGS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "-" in name else ()) for name in TRAININGS]
)
def test_torch_trains_as_numpy_does_and_a_recording_as_what_it_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {}
    for kind, backend in BACKENDS.items():
        monkeypatch.setattr(flat, "backend_of", lambda device, backend=backend: backend)
        result = TRAININGS[name]("cpu")
        assert result.checkpoint is not None
        weights[kind] = load_policy_state(open_checkpoint(result.checkpoint))["weights"]
    for key, tensor in weights["torch"].items():
        assert tensor.any() or "biases" not in key  # which are zero before any update
        np.testing.assert_allclose(weights["numpy"][key].numpy(), tensor.numpy(), rtol=0, atol=1e-4, err_msg=key)
        assert torch.equal(weights["recorded"][key], tensor), key
