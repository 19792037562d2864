"""The rollout buffer: advantages worked out by hand, minibatches, and its saved state."""

import io
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.rollout_buffer import RolloutBuffer

F4 = np.dtype(np.float32)
MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 2, 3))])


def make_buffer(
    steps: int, envs: int, obs_shape: tuple[int, ...] = (1,), obs_dtype: np.dtype[Any] = F4
) -> RolloutBuffer:
    return RolloutBuffer(steps, envs, obs_shape, obs_dtype, (), np.dtype(np.int64))


def filled(
    rewards: Any, values: Any, terminated: Any = None, truncated: Any = None, final_values: Any = None
) -> RolloutBuffer:
    """A full buffer from [T, N] tables; the observation and action of a transition are its number t * N + n."""
    rewards = np.asarray(rewards, np.float32)
    steps, envs = rewards.shape
    flags = [
        np.zeros((steps, envs), bool) if flag is None else np.asarray(flag, bool) for flag in (terminated, truncated)
    ]
    finals = np.zeros((steps, envs)) if final_values is None else np.asarray(final_values)
    number = np.arange(steps * envs).reshape(steps, envs)
    buffer = make_buffer(steps, envs)
    for t in range(steps):
        step = (rewards[t], flags[0][t], flags[1][t], np.asarray(values)[t], -0.5 * number[t], finals[t])
        buffer.add(number[t, :, None], number[t], *step)
    return buffer


def slow_gae(
    buffer: RolloutBuffer, truncated: np.ndarray, last_values: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """The definition: for each step the sum over the rest of its segment of (gamma * lambda)^k * delta."""
    steps, envs = buffer.rewards.shape
    advantages = np.zeros((steps, envs))
    for n, t in itertools.product(range(envs), range(steps)):
        weight = 1.0
        for k in range(t, steps):
            ended, cut = buffer.terminated[k, n], truncated[k, n]
            after = last_values[n] if k == steps - 1 else buffer.values[k + 1, n]
            next_value = 0.0 if ended else buffer.final_values[k, n] if cut else after
            delta = float(buffer.rewards[k, n]) + gamma * float(next_value) - float(buffer.values[k, n])
            advantages[t, n] += weight * delta
            weight *= gamma * lam
            if ended or cut:
                break
    return advantages


def test_gae_by_hand() -> None:
    # deltas: 1 + .5*2 - 1 = 1;  0 + .5*4 - 2 = 0;  2 + .5*8 - 4 = 2.  decay .5 * .5 = .25
    # A2 = 2;  A1 = 0 + .25*2 = .5;  A0 = 1 + .25*.5 = 1.125
    buffer = filled([[1], [0], [2]], [[1], [2], [4]])
    buffer.compute_returns_and_advantages(np.array([8.0]), gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(buffer.advantages[:, 0], [1.125, 0.5, 2.0])
    np.testing.assert_array_equal(buffer.returns[:, 0], [2.125, 2.5, 6.0])


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # Reward 1, value 3, next value 10 (of the next episode, where one ended), final value 6.
        # The second step's advantage is 2 + .9 * 10 - 10 = 1.
        (False, False, 1 + 0.9 * 10 - 3 + 0.9 * 0.5 * 1),
        (True, False, 1 - 3),
        (False, True, 1 + 0.9 * 6 - 3),
        (True, True, 1 - 3),
    ],
)
def test_truth_table_of_the_two_flags(terminated: bool, truncated: bool, expected: float) -> None:
    buffer = filled(
        [[1], [2]], [[3], [10]], [[terminated], [False]], [[truncated], [False]], final_values=[[6], [np.nan]]
    )
    buffer.compute_returns_and_advantages(np.array([10.0]), gamma=0.9, gae_lambda=0.5)
    assert buffer.advantages[0, 0] == pytest.approx(expected, abs=1e-6)
    assert buffer.dones[0, 0] == (terminated or truncated)
    assert buffer.final_values[:, 0].tolist() == [6.0 if truncated and not terminated else 0.0, 0.0]


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True)])
def test_a_flag_on_the_last_step_hides_the_value_after_it(terminated: bool, truncated: bool) -> None:
    buffer = filled([[1]], [[3]], [[terminated]], [[truncated]], final_values=[[6]])
    buffer.compute_returns_and_advantages(np.array([np.nan]), gamma=0.5, gae_lambda=1.0)
    assert buffer.advantages[0, 0] == (1 - 3 if terminated else 1 + 0.5 * 6 - 3)


def test_nothing_leaks_between_environments_or_episodes() -> None:
    quiet = filled([[0, 0], [0, 0], [0, 0]], np.zeros((3, 2)), terminated=[[0, 0], [1, 0], [0, 0]])
    loud = filled([[0, 5], [0, 5], [7, 5]], np.zeros((3, 2)), terminated=[[0, 0], [1, 0], [0, 0]])
    for buffer in (quiet, loud):
        buffer.compute_returns_and_advantages(np.zeros(2), gamma=0.9, gae_lambda=0.9)
    np.testing.assert_array_equal(loud.advantages[:2, 0], quiet.advantages[:2, 0])
    assert loud.advantages[2, 0] == 7.0


def test_lambda_one_gives_discounted_returns_and_lambda_zero_one_step_errors() -> None:
    rng = np.random.default_rng(1)
    rewards, values, last, gamma = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), np.array([2.0, -1.0]), 0.8
    buffer = filled(rewards, values)
    buffer.compute_returns_and_advantages(last, gamma, gae_lambda=1.0)
    for t in range(6):
        discounted = sum(gamma ** (k - t) * rewards[k] for k in range(t, 6)) + gamma ** (6 - t) * last
        np.testing.assert_allclose(buffer.returns[t], discounted, atol=1e-5)
    buffer.compute_returns_and_advantages(last, gamma, gae_lambda=0.0)
    next_values = np.concatenate([values[1:], last[None]])
    np.testing.assert_allclose(buffer.advantages, rewards + gamma * next_values - values, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 4), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_gae_equals_its_definition(seed: int, steps: int, envs: int, gamma: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, finals = (rng.normal(0, 3, (steps, envs)) for _ in range(3))
    terminated, truncated = (rng.random((steps, envs)) < 0.25 for _ in range(2))
    buffer = filled(rewards, values, terminated, truncated, finals)
    last_values = rng.normal(0, 3, envs)
    buffer.compute_returns_and_advantages(last_values, gamma, gae_lambda)
    expected = slow_gae(buffer, truncated, last_values, gamma, gae_lambda)
    np.testing.assert_allclose(buffer.advantages, expected, atol=2e-4)
    np.testing.assert_array_equal(buffer.returns, buffer.advantages + buffer.values)


def test_minibatches_cover_every_transition_once_and_keep_its_parts_together() -> None:
    buffer = filled(np.arange(21).reshape(7, 3), np.zeros((7, 3)))
    buffer.compute_returns_and_advantages(np.zeros(3), gamma=0.9, gae_lambda=0.0)
    batches = list(buffer.iter_minibatches(4, np.random.default_rng(0).permutation(21)))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 1]
    actions = np.concatenate([batch.actions for batch in batches])
    assert sorted(actions) == list(range(21))
    assert actions.tolist() != list(range(21))
    np.testing.assert_array_equal(np.concatenate([batch.obs[:, 0] for batch in batches]), actions)
    np.testing.assert_array_equal(np.concatenate([batch.logprobs for batch in batches]), -0.5 * actions)
    np.testing.assert_array_equal(np.concatenate([batch.advantages for batch in batches]), actions)  # values are 0


def test_a_shorter_rollout_is_full_sooner_and_leaves_the_old_steps_out() -> None:
    buffer = filled(np.ones((5, 2)), np.zeros((5, 2)))
    buffer.reset(steps=2)
    for _ in range(2):
        assert not buffer.full
        buffer.add(np.zeros((2, 1)), *(np.zeros(2, d) for d in (int, float, bool, bool, float, float, float)))
    assert buffer.full
    assert buffer.num_transitions == 4
    buffer.compute_returns_and_advantages(np.array([1.0, 2.0]), gamma=0.5, gae_lambda=1.0)
    np.testing.assert_array_equal(buffer.returns[:2], [[0.25, 0.5], [0.5, 1.0]])
    assert [len(batch) for batch in buffer.iter_minibatches(4, np.arange(4))] == [4]
    with pytest.raises(ValueError, match="full with 2 steps"):
        buffer.add(np.zeros((2, 1)), *(np.zeros(2, d) for d in (int, float, bool, bool, float, float, float)))
    with pytest.raises(ValueError, match="6 steps does not fit a buffer of 5"):
        buffer.reset(steps=6)


def test_a_final_value_does_not_outlive_its_rollout() -> None:
    buffer = filled([[1]], [[3]], truncated=[[True]], final_values=[[6]])
    assert buffer.final_values.tolist() == [[6.0]]
    buffer.reset()
    no = np.zeros(1, bool)
    buffer.add(buffer.obs[0], buffer.actions[0], np.ones(1), no, no, np.ones(1), np.ones(1), np.full(1, 9.0))
    assert buffer.final_values.tolist() == [[0.0]]


def test_what_is_stored_is_a_copy() -> None:
    buffer, reused = make_buffer(2, 1), np.ones((1, 1), np.float32)
    none = np.zeros(1, bool)
    for value in (1.0, 2.0):
        reused[:] = value
        buffer.add(reused, none, reused[0], none, none, reused[0], reused[0], reused[0])
    assert buffer.obs[:, 0, 0].tolist() == buffer.rewards[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("shape", "dtype"), [((2,), F4), ((1, 2, 2), np.dtype(np.uint8)), ((), MIXED)])
def test_state_goes_through_a_weights_only_file(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(3)
    buffer, copy = make_buffer(4, 2, shape, dtype), make_buffer(4, 2, shape, dtype)
    buffer.reset(steps=3)
    for t in range(2):
        raw = rng.integers(0, 100, (2, dtype.itemsize * int(np.prod(shape))), np.uint8)
        obs = raw.view(dtype).reshape(2, *shape)
        buffer.add(obs, np.array([t, 7]), *rng.random((1, 2)), *(rng.random((2, 2)) < 0.5), *rng.random((3, 2)))
    buffer.compute_returns_and_advantages(np.ones(2), 0.9, 0.9)

    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    assert len(file.getvalue()) < 10_000
    copy.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))

    assert (copy.position, copy.steps, copy.full) == (2, 3, False)
    for name, array in vars(buffer).items():
        if isinstance(array, np.ndarray):
            assert getattr(copy, name)[:2].tobytes() == array[:2].tobytes(), name


def test_an_episode_that_others_follow_unforeseen_is_cut_after_its_newest_step() -> None:
    rewards, values = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[0.5, 0.5], [0.25, 0.25], [0.125, 0.125]]
    cut = filled(rewards, values, truncated=[[0, 0], [1, 0], [0, 0]], final_values=[[0, 0], [8.0, 0], [0, 0]])
    half = make_buffer(3, 2)
    nothing = np.zeros(2, bool)
    for t in range(3):
        half.add(
            np.zeros((2, 1)),
            np.zeros(2),
            np.array(rewards[t]),
            nothing,
            nothing,
            np.array(values[t]),
            *[np.zeros(2)] * 2,
        )
        if t == 1:
            half.cut_newest([0], np.array([8.0, 9.0]))
    for buffer in (cut, half):
        buffer.compute_returns_and_advantages(np.array([4.0, 4.0]), gamma=0.5, gae_lambda=0.5)
    assert half.returns.tolist() == cut.returns.tolist()
    assert half.returns[1, 0] == 2.0 + 0.5 * 8.0
    ended = filled([[1.0]], [[0.0]], truncated=[[1]], final_values=[[5.0]])
    ended.cut_newest([0], np.array([7.0]))  # it had ended anyhow
    assert ended.final_values.tolist() == [[5.0]]
