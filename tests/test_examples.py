"""The examples work as a reader would run them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from waiting import LIMIT

from rl_training import Callback, evaluate_checkpoint, register_algorithm, resume
from rl_training.config.network import BodyConfig
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import ConfigError
from rl_training.networks.named_body.module_body import make_body
from rl_training.runtime.checkpoint import open_checkpoint
from rl_training.seeding import generator
from tests.network_parts import by_autograd
from tests.off_policy_parts import VECTOR, assert_gradients, in_float64, moves, random_batch, wide

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def cross_entropy(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import cross_entropy

    register_algorithm(cross_entropy.SPEC)  # again, because another test may have imported it first
    return cross_entropy


def rl_training(*words: object) -> dict:
    """Runs `rl-training` with `examples` on PYTHONPATH and returns its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", *map(str, words), "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_thermostat_keeps_the_contract():
    report = rl_training("validate-env", "thermostat:Thermostat-v0", "--deep")
    assert report["findings"] == []
    assert (report["episodes_played"], report["steps_played"]) == (20, 20 * 60)


@pytest.mark.slow
def test_thermostat_is_learnt():
    # Random actions come to -308 on average, heating whenever it is too cold to -85.
    summary = rl_training("train", "--config", "examples/thermostat.yaml", "--no-track")
    assert summary["num_timesteps"] == 30_000
    assert summary["evaluation"]["return_mean"] > -110


def test_cross_entropy_learns_cartpole(cross_entropy):
    fields = {"num_envs": 16, "vectorization": "sync", "total_timesteps": 30_000}
    config = cross_entropy.CrossEntropyConfig(env_id="CartPole-v1", **fields)
    result = cross_entropy.train_cross_entropy(config)
    assert result.num_timesteps == 30_000
    assert evaluate_checkpoint(result.checkpoint, episodes=10).return_mean > 100  # a random policy comes to 22


class StopAt2000(Callback):
    """Stops at a checkpoint, which is in the middle of a generation."""

    def on_checkpoint_end(self, state):
        if state.num_timesteps == 2_000:
            state.request_stop()


def test_cross_entropy_resumes_exactly(cross_entropy):
    config = cross_entropy.CrossEntropyConfig(
        env_id="CartPole-v1", num_envs=4, total_timesteps=4_000, evaluation={"episodes": 2}, checkpoint={"every": 1_000}
    )
    whole = cross_entropy.train_cross_entropy(config)
    stopped = cross_entropy.train_cross_entropy(config, [StopAt2000()])
    assert (stopped.num_timesteps, stopped.stop_reason) == (2_000, "callback")
    resumed = resume(stopped.run_dir, track=False)
    assert resumed.num_timesteps == whole.num_timesteps == 4_000
    assert open_checkpoint(resumed.checkpoint).policy_sha256 == open_checkpoint(whole.checkpoint).policy_sha256


def test_cross_entropy_refuses_what_it_has_no_head_for(cross_entropy):
    box, discrete = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    assert cross_entropy.check_spaces(box, discrete) == []
    (problem,) = cross_entropy.check_spaces(box, box)
    assert problem.startswith("cross_entropy takes Discrete actions, but the environment has Box(-1.0, 1.0, (3,)")


@pytest.fixture
def ddpg(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import ddpg

    register_algorithm(ddpg.SPEC)
    return ddpg


def test_the_tutorial_on_algorithms_shows_ddpg_whole():
    page, code = (ROOT / "docs" / "custom-algorithm.md").read_text(), (EXAMPLES / "ddpg.py").read_text()
    assert code in page
    assert len(code.splitlines()) == 125  # the page says so


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ddpg_resumes_exactly(ddpg, kind):
    config = ddpg.DDPGConfig(
        env_id="Pendulum-v1", num_envs=2, vectorization=kind, total_timesteps=600, learning_starts=100, batch_size=16,
        evaluation={"episodes": 1}, checkpoint={"every": 100}, network={"hidden": (16,)},
    )  # fmt: skip

    class StopAt300(Callback):  # in the middle of an episode
        def on_checkpoint_end(self, state):
            if state.num_timesteps == 300:
                state.request_stop()

    whole, stopped = ddpg.SPEC.train(config), ddpg.SPEC.train(config, [StopAt300()])
    assert (stopped.num_timesteps, stopped.stop_reason) == (300, "callback")
    before = open_checkpoint(stopped.checkpoint).policy_sha256
    resumed = resume(stopped.run_dir, track=False)
    after, wanted = (open_checkpoint(result.checkpoint).policy_sha256 for result in (resumed, whole))
    assert before != after == wanted


def test_ddpgs_gradients_equal_autograd(ddpg):
    config = ddpg.DDPGConfig(env_id="none", total_timesteps=10_000, network={"hidden": (16, 16)})
    codec = ActionCodec(gym.spaces.Box(-2, 2, (2,)), scaled=True)
    agent = ddpg.DDPG(config, ObservationEncoder(VECTOR), codec, torch.device("cpu"))
    agent.parameters, agent.state.critics = in_float64(agent.actor), in_float64(agent.critics)
    agent.state.targets = in_float64(agent.target_critics, noise=0.3)
    agent.state.target_policy = in_float64(agent.target_actor, noise=0.3)
    batch = wide(random_batch(moves))
    obs, next_obs, actions, rewards, discounts = (
        torch.from_numpy(getattr(batch, name)) for name in ("obs", "next_obs", "actions", "rewards", "discounts")
    )

    def policy(actor, obs):
        return by_autograd(actor, obs)[0].tanh()

    def q(critics, obs, actions):
        return by_autograd(critics, obs, actions)[0][:, 0]

    with torch.no_grad():
        targets = rewards + discounts * q(agent.target_critics, next_obs, policy(agent.target_actor, next_obs))
    critic_loss = 0.5 * ((q(agent.critics, obs, actions) - targets) ** 2).mean()
    critic_gradient = torch.autograd.grad(critic_loss, list(agent.critics.parameters()))
    policy_loss = -q(agent.critics, obs, policy(agent.actor, obs)).mean()
    policy_gradient = torch.autograd.grad(policy_loss, list(agent.actor.parameters()))
    agent._critic_gradient(batch.obs, batch.next_obs, batch.actions, batch.rewards, batch.discounts)
    assert_gradients(agent.critics, critic_gradient)
    agent._actor_gradient(batch.obs)
    assert_gradients(agent.actor, policy_gradient)


def test_the_page_on_networks_shows_the_residual_cnn():
    page = (ROOT / "docs" / "how-to" / "own-networks.md").read_text(encoding="utf-8")
    assert (EXAMPLES / "residual_cnn.py").read_text(encoding="utf-8") in page


def test_the_residual_cnn_is_a_body_for_images_of_any_size(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    layout = SimpleNamespace(kind="image", shape=(3, 12, 10), dtype=np.dtype(np.uint8))
    body = make_body(BodyConfig(name="residual_cnn:ResidualCNN"), layout, generator(0, "init"))
    assert body.features == 256
    assert body.module.head.in_features == 32 * 2 * 2  # 12 x 10, then 6 x 5, 3 x 3, 2 x 2
    vectors = SimpleNamespace(kind="vector", shape=(3,), dtype=np.dtype(np.float32))
    with pytest.raises(ConfigError, match="ValueError: got observations of the kind vector, expected images"):
        make_body(BodyConfig(name="residual_cnn:ResidualCNN"), vectors, generator(0, "init"))


def test_a_residual_block_without_its_last_convolution_is_the_identity(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from residual_cnn import ResidualBlock

    block, x = ResidualBlock(8), torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(block.layers[-1].weight)
    torch.nn.init.constant_(block.layers[-1].bias, 0.5)
    torch.testing.assert_close(block(x), x + 0.5, rtol=0, atol=0)
