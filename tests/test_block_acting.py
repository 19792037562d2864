"""Acting in blocks of steps gives, to the last bit, what acting step by step gives."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms import block_acting
from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.networks.actor_critic import FEW_ROWS, ActorCritic, JointBlock, SeparateBlock
from rl_training.networks.distributions import Categorical
from rl_training.networks.flat import FlatParameters
from tests.network_parts import CPU
from tests.ppo_parts import ACTIONS, VECTOR, make_buffer, make_ppo

IMAGE = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
STEPS, ENVS = 8, 4


def make_network(inputs: int, hidden: tuple[int, ...], actions: int, activation: str) -> ActorCritic:
    layout = SimpleNamespace(kind="vector", shape=(inputs,), dtype=np.dtype(np.float32))
    return ActorCritic(layout, Categorical(actions), hidden, activation, np.random.default_rng(0))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (1,), (5,), (64, 64), (200, 17, 32)], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33])
def test_networks_evaluated_apart_have_the_bits_of_both_together(
    rows: int, hidden: tuple[int, ...], activation: str
) -> None:
    rng = np.random.default_rng(1)
    for inputs, actions in ((1, 1), (4, 2), (17, 6)):
        network = make_network(inputs, hidden, actions, activation)
        weights = FlatParameters(network, CPU).vector
        block = network.make_block(6, rows)
        assert isinstance(block, SeparateBlock)
        for taken in (6, 4):  # the second block is complete before its last step, and has other weights
            weights.copy_(torch.from_numpy(rng.standard_normal(len(weights), dtype=np.float32)))
            observations = rng.standard_normal((taken, rows, inputs), dtype=np.float32)
            expected = [[each.copy() for each in network.act(step)] for step in observations]
            block.begin()
            outputs = np.stack([block.act(t, step) for t, step in enumerate(observations)])
            values = block.values(observations)
            assert outputs.tobytes() == np.stack([each for each, _ in expected]).tobytes()
            assert values.tobytes() == np.stack([each for _, each in expected]).tobytes()
            assert (outputs.dtype, values.dtype) == (np.float32, np.float32)


def test_values_wait_only_where_that_is_faster() -> None:
    small, wide = (make_network(4, hidden, 2, "tanh") for hidden in ((64, 64), (512, 512)))
    image = make_ppo(IMAGE, ACTIONS["discrete"]).network
    for network in (small, wide):
        FlatParameters(network, CPU)
    kinds = [type(network.make_block(2, 8)) for network in (small, wide, image)]
    assert kinds == [SeparateBlock, JointBlock, JointBlock]
    assert isinstance(small.make_block(2, FEW_ROWS + 1), JointBlock)


def one_by_one(ppo: PPO, buffer: RolloutBuffer, observations: np.ndarray) -> None:
    nothing = np.zeros(ENVS, bool)
    for observation in observations:
        actions, logprobs, values = ppo.act(observation)
        buffer.add(observation, actions, nothing, nothing, nothing, values, logprobs, nothing)


def in_blocks(ppo: PPO, buffer: RolloutBuffer, observations: np.ndarray) -> None:
    for observation in observations:
        buffer.add_step(observation, ppo.acting.act(observation), np.zeros(ENVS))
        if ppo.acting.is_full:
            ppo.acting.complete(buffer)
    ppo.acting.complete(buffer)


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_rollouts_and_random_states_are_those_of_single_steps_wherever_blocks_end(
    kind: str, space: gym.spaces.Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_acting, "ROWS", 3 * ENVS)
    rng = np.random.default_rng(2)
    single, blocks = (make_ppo(space, ACTIONS[kind]) for _ in range(2))
    before, after = (make_buffer(ppo, space, ACTIONS[kind]) for ppo in (single, blocks))
    for counts in ((8,), (1, 7), (4, 0, 4)):  # steps between completions; a block has three
        weights = torch.from_numpy(0.2 * rng.standard_normal(len(single.parameters.vector), dtype=np.float32))
        for ppo, buffer in ((single, before), (blocks, after)):
            ppo.parameters.vector.copy_(weights)
            buffer.reset()
        for count in counts:
            shape = (count, ENVS, *before.obs.shape[2:])
            observations = rng.integers(0, 256, shape).astype(before.obs.dtype)
            one_by_one(single, before, observations)
            in_blocks(blocks, after, observations)
            assert single.state.action_rng.bit_generator.state == blocks.state.action_rng.bit_generator.state
        for name in ("obs", "actions", "logprobs", "values"):
            assert getattr(before, name).tobytes() == getattr(after, name).tobytes(), name
    assert after.logprobs.all()
    assert after.values.all()


def test_a_step_ends_no_episode_unless_it_is_told() -> None:
    buffer = make_buffer(make_ppo(VECTOR, ACTIONS["box"]), VECTOR, ACTIONS["box"])
    observations, actions, rewards = np.zeros((ENVS, 3)), np.zeros((ENVS, 2)), np.ones(ENVS)
    terminated, truncated = np.array([[0, 1, 0, 1], [0, 0, 1, 1]], bool)
    for _ in range(2):
        buffer.reset()
        buffer.add_step(observations, actions, rewards)
        assert not buffer.dones[0].any()
        buffer.add_step(observations, actions, rewards)
        buffer.end_episodes(terminated, truncated, np.full(ENVS, 5.0))
        assert buffer.terminated[:2].tolist() == [[False] * 4, [False, True, False, True]]
        assert buffer.dones[:2].tolist() == [[False] * 4, [False, True, True, True]]
        assert buffer.final_values[:2].tolist() == [[0.0] * 4, [0.0, 0.0, 5.0, 0.0]]
        buffer.reset()  # and again, with another step that ended episodes
        buffer.add_step(observations, actions, rewards)
        buffer.end_episodes(terminated, terminated, None)
        assert buffer.dones[0].tolist() == terminated.tolist()
        assert not buffer.final_values.any()
