"""What TD3 and TQC have in common: learning, streams of random numbers, states, and what they refuse.

`test_sac_update.py` has the same for SAC, in more detail.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.continuous import td3, tqc
from rl_training.algorithms.continuous.actor_critic import OffPolicyActorCritic
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import CheckpointError, NumericError
from tests.off_policy_parts import (
    CAMERA,
    OBSERVATIONS,
    TEN_STEP_VALUES,
    UNEQUAL,
    VECTOR,
    live_ten_steps,
    make_td3,
    make_tqc,
    moves,
    random_batch,
    solve_contexts,
    ten_steps,
    through_a_file,
)

Make = Callable[..., OffPolicyActorCritic]
MAKERS: dict[str, Make] = {"td3": make_td3, "tqc": make_tqc}
MODULES: dict[str, Any] = {"td3": td3, "tqc": tqc}
ALL_RANDOM: dict[str, Any] = {"learning_starts": 20_000, "total_timesteps": 40_000}
CAUTIOUS: dict[str, dict[str, Any]] = {"td3": {"policy_delay": 12}, "tqc": {"entropy_coef": 0.05}}
"""Otherwise the policy may saturate before its critics know better; the tanh then leaves it no gradient."""
NO_ENTROPY: dict[str, dict[str, Any]] = {"td3": {}, "tqc": {"entropy_coef": 0.0}}


@pytest.fixture(params=MAKERS)
def algo(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(algo: str) -> Make:
    return MAKERS[algo]


# Learning.


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("vector", 900),
        ("dict", 900),
        pytest.param("image", 900, marks=pytest.mark.slow),
        pytest.param("mixed", 900, marks=pytest.mark.slow),
    ],
)
def test_the_best_action_is_learnt_in_the_environments_units(make: Make, algo: str, kind: str, steps: int) -> None:
    settings = {"seed": 2, "learning_rate": 3e-3, "network": {"hidden": [64, 64]}, "learning_starts": 400}
    agent = make(OBSERVATIONS[kind][0], UNEQUAL, **settings, **CAUTIOUS[algo])
    codec = ActionCodec(UNEQUAL, scaled=True)
    best, size = np.array([[4.0, 0.6], [1.0, -0.5], [2.5, 0.0]]), np.array([5.0, math.pi / 2])
    observations = solve_contexts(
        agent, kind, lambda c, a: -4 * np.square((codec.to_env(a) - best[c]) / size).sum(1), steps, 64
    )
    np.testing.assert_allclose(codec.to_env(agent.act_greedy(observations)) / size, best / size, atol=0.1)


@pytest.mark.parametrize(("ends", "first", "last"), TEN_STEP_VALUES)
def test_values_of_episodes_of_ten_steps(make: Make, algo: str, ends: str, first: float, last: float) -> None:
    agent = make(
        gym.spaces.Box(0, 1, (2,)), gym.spaces.Box(-1, 1, (1,)), gamma=0.9, learning_rate=0.01, tau=0.05,
        learning_rate_schedule="linear", network={"hidden": [32, 32]}, **ALL_RANDOM, **NO_ENTROPY[algo],
    )  # fmt: skip
    live_ten_steps(agent, ends, 2_000, lambda done: None)
    learnt = agent.q_values(ten_steps(np.array([0, 9]), ends), np.zeros((2, 1), np.float32))
    np.testing.assert_allclose(learnt, [first, last], rtol=0.05)


# Acting, and streams of random numbers.


def test_warm_up_is_uniform_on_the_policys_own_scale_and_held(make: Make) -> None:
    agent = make(action_space=UNEQUAL, **ALL_RANDOM, warmup_hold=2, num_envs=4_000, buffer_size=4_000)
    observations = np.zeros((4_000, 3), np.float32)
    actions, again, other = (agent.act(observations, step) for step in (0, 4_000, 8_000))
    assert (actions.dtype, actions.shape) == (np.float32, (4_000, 2))
    for dim in range(2):
        np.testing.assert_allclose(np.histogram(actions[:, dim], 4, (-1, 1))[0] / 4_000, 0.25, atol=0.03)
    np.testing.assert_array_equal(actions, again)
    assert not np.array_equal(actions, other)


def test_looking_at_values_or_learning_changes_no_draw_of_an_action(make: Make) -> None:
    observations = np.ones((4, 3), np.float32)
    quiet, busy = make(), make()
    busy.act_greedy(observations)
    busy.q_values(observations, np.zeros((4, 2), np.float32))
    before = busy.parameters.vector.clone()
    for seed in range(2):
        busy.update(random_batch(moves, seed=seed), 0.0)
    assert not torch.equal(busy.parameters.vector, before)
    busy.parameters.vector.copy_(before)
    np.testing.assert_array_equal(quiet.act(observations, 0), busy.act(observations, 0))
    assert str(quiet.replay_rng.bit_generator.state) == str(busy.replay_rng.bit_generator.state)


def test_the_seed_decides(make: Make) -> None:
    first, same, other = (make(seed=seed) for seed in (1, 1, 2))
    for agent in (first, same, other):
        live_on(agent, 0)
    assert bits(first) == bits(same)
    assert torch.equal(first.parameters.vector, same.parameters.vector)
    assert not torch.equal(first.parameters.vector, other.parameters.vector)


# State.


def bits(agent: OffPolicyActorCritic) -> str:
    """Everything that a checkpoint holds, as text with all digits."""
    torch.set_printoptions(profile="full", precision=20)
    try:
        return str((agent.policy_state(), agent.state_dict()))
    finally:
        torch.set_printoptions(profile="default")


def live_on(agent: OffPolicyActorCritic, first: int) -> list[dict[str, float]]:
    metrics = []
    for step in range(first, first + 5):
        agent.act(random_batch(moves, seed=step).obs, step)
        agent.replay_rng.integers(10)
        metrics.append(agent.update(random_batch(moves, seed=step), step / 20))
    return metrics


def test_a_new_object_continues_with_the_same_bits(make: Make) -> None:
    settings = {"seed": 4, "learning_rate": 0.01, "learning_rate_schedule": "linear"}
    complete, part, again = (make(**settings) for _ in range(3))
    for agent in (complete, part):
        live_on(agent, 0)  # an odd number of updates
    again.load_policy_state(through_a_file(part.policy_state()))
    again.load_state_dict(through_a_file(part.state_dict()))
    assert bits(again) == bits(part)
    assert live_on(complete, 5) == live_on(again, 5)
    assert bits(complete) == bits(again)
    assert again.state.critic_optimizer.steps == 10


def test_every_part_of_the_state_changes_in_training(make: Make) -> None:
    agent = make(learning_starts=2)
    before = {name: str(value) for name, value in agent.state_dict().items()}
    live_on(agent, 0)
    after = {name: str(value) for name, value in agent.state_dict().items()}
    assert {name for name in before if before[name] == after[name]} == set()
    assert set(before) == {field.name for field in fields(agent.state)}


def test_weights_of_another_network_are_refused(make: Make) -> None:
    small, large = make(), make(network={"hidden": [8, 8]})
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_policy_state(large.policy_state())
    with pytest.raises(CheckpointError, match="weights do not fit"):
        small.load_state_dict(large.state_dict())


@pytest.mark.parametrize("with_training", [True, False])
def test_weights_of_another_agent_are_carried_over(make: Make, with_training: bool) -> None:
    source, new = make(seed=1), make(seed=2)
    live_on(source, 0)
    own_critics = new.state.critics.vector.clone()
    layers = new.carry_over(source.policy_state(), source.state_dict() if with_training else None)
    assert torch.equal(new.parameters.vector, source.parameters.vector)
    critics = source.state.critics.vector if with_training else own_critics
    assert torch.equal(new.state.critics.vector, critics)
    assert torch.equal(new.state.targets.vector, critics)
    assert any(name.startswith("critics.") for name in (layers.carried if with_training else layers.fresh))


# What is refused.


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda agent, batch: batch.rewards.fill(np.nan), "replayed rewards is not finite"),
        (lambda agent, batch: agent.parameters.vector.fill_(np.inf), r"weight mlps\.weights\.0 of the policy is not"),
        (lambda agent, batch: agent.state.targets.vector.fill_(np.nan), "of the target critics is not finite"),
    ],
)
def test_what_is_not_finite_is_named_and_the_critics_stay(make: Make, spoil: Any, named: str) -> None:
    agent, batch = make(), random_batch(moves)
    agent.update(batch, 0.0)  # TD3's policy learns in the second update
    spoil(agent, batch)
    with pytest.raises(NumericError, match=named):
        agent.update(batch, 0.0)


@pytest.mark.parametrize("space", [UNEQUAL, gym.spaces.Box(-1, 1, (2, 3)), gym.spaces.Box(0, 9, (1,), np.int32)])
def test_spaces_that_fit(algo: str, space: gym.Space[Any]) -> None:
    assert MODULES[algo].check_spaces(VECTOR, space) == []
    assert MODULES[algo].check_spaces(CAMERA, space) == []


@pytest.mark.parametrize("space", [gym.spaces.Discrete(2), gym.spaces.Box(-np.inf, np.inf, (2,))])
def test_other_spaces_are_refused_by_the_algorithms_name(algo: str, space: gym.Space[Any]) -> None:
    (fault,) = MODULES[algo].check_spaces(VECTOR, space)
    assert fault.startswith(f"action space {space} is not supported; {algo} needs a Box with a lower and an upper")
    assert len(MODULES[algo].check_spaces(gym.spaces.Text(3), space)) == 2


@pytest.mark.parametrize(
    ("terminated", "truncated", "has_next"),
    [(False, False, True), (True, False, False), (False, True, True), (True, True, False)],
)
def test_only_a_terminated_transition_has_no_next_value(
    make: Make, algo: str, terminated: bool, truncated: bool, has_next: bool
) -> None:
    agent = make(**NO_ENTROPY[algo])
    agent.state.targets.vector.zero_()
    with torch.no_grad():
        for bias in agent.target_critics.mlps.head_biases:
            bias.fill_(7.0)
    buffer = ReplayBuffer(4, 1, (3,), np.dtype(np.float32), (2,), np.dtype(np.float32), gamma=0.9)
    x = np.ones((1, 3), np.float32)
    buffer.add(x, moves(agent.replay_rng, 1), np.array([5.0]), x, np.array([terminated]), np.array([truncated]))
    batch, noise = buffer.sample(2, agent.replay_rng), np.zeros((2, 2), np.float32)
    draws = (noise, 0.0)[: 1 if algo == "td3" else 2]
    got = agent._targets(batch.next_obs, batch.rewards, batch.discounts, *draws)
    np.testing.assert_allclose(got, 5.0 + 0.9 * 7.0 if has_next else 5.0, rtol=1e-6)
