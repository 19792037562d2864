"""A whole training computes the same with torch, as on a GPU, as with numpy, up to rounding."""

import numpy as np
import pytest

from rl_training import train_dqn, train_ppo, train_sac
from rl_training.config.dqn import DQNConfig
from rl_training.config.ppo import PPOConfig
from rl_training.config.sac import SACConfig
from rl_training.networks import flat
from rl_training.runtime.checkpoint import load_policy_state, open_checkpoint
from tests.network_parts import BACKENDS

SMALL = {"total_timesteps": 192, "network": {"hidden": [16, 16]}, "seed": 3, "evaluation": {"episodes": 1}}
OFF = {"learning_starts": 64, "batch_size": 16, "buffer_size": 256}
TRAININGS = {
    "ppo": lambda: train_ppo(PPOConfig(env_id="CartPole-v1", num_envs=4, rollout_steps=16, batch_size=32, **SMALL)),
    "ppo-box": lambda: train_ppo(PPOConfig(env_id="Pendulum-v1", num_envs=2, rollout_steps=32, batch_size=32, **SMALL)),
    "dqn": lambda: train_dqn(DQNConfig(env_id="CartPole-v1", double=True, dueling=True, **OFF, **SMALL)),
    "sac": lambda: train_sac(SACConfig(env_id="Pendulum-v1", **OFF, **SMALL)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_torch_trains_as_numpy_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for backend in BACKENDS.values():
        monkeypatch.setattr(flat, "backend_of", lambda device, backend=backend: backend)
        result = TRAININGS[name]()
        assert result.checkpoint is not None
        weights.append(load_policy_state(open_checkpoint(result.checkpoint))["weights"])
    first, second = weights
    assert all(tensor.any() for key, tensor in first.items() if "biases" in key)  # which are zero before any update
    for key in first:
        np.testing.assert_allclose(first[key].numpy(), second[key].numpy(), rtol=0, atol=1e-4, err_msg=key)
