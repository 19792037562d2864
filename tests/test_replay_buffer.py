"""The replay buffer: targets compared with a slow reference, the ring, dtypes, copies, and its random stream."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.seeding import generator, generator_state, restore_generator

F4 = np.dtype(np.float32)
MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 2, 3))])


def make_buffer(capacity: int, envs: int = 1, n_step: int = 1, gamma: float = 0.5) -> ReplayBuffer:
    return ReplayBuffer(capacity, envs, (1,), F4, (), np.dtype(np.int64), n_step, gamma)


def fill(buffer: ReplayBuffer, rewards: Any, terminated: Any = None, truncated: Any = None) -> None:
    """Adds [T, N] tables; obs and action of a transition are its number i, its next observation is i + 0.5."""
    rewards = np.asarray(rewards, np.float64)
    flags = [
        np.zeros(rewards.shape, bool) if flag is None else np.asarray(flag, bool) for flag in (terminated, truncated)
    ]
    for t, reward in enumerate(rewards):
        number = buffer.total + np.arange(buffer.num_envs)
        buffer.add(number[:, None], number, reward, number[:, None] + 0.5, flags[0][t], flags[1][t])


def targets(buffer: ReplayBuffer, draws: int = 400) -> dict[int, tuple[float, float, float]]:
    """(reward, next observation, discount) by the number of the transition, for all that sampling comes to."""
    batch = buffer.sample(draws, np.random.default_rng(0))
    columns = (batch.rewards, batch.next_obs[:, 0], batch.discounts)
    found: dict[int, tuple[float, float, float]] = {}
    for i, number in enumerate(batch.actions):
        row = tuple(float(column[i]) for column in columns)
        assert found.setdefault(int(number), row) == row
        assert batch.obs[i, 0] == number
    return found


@pytest.mark.parametrize(
    ("terminated", "truncated", "discount"),
    [(False, False, 0.5), (True, False, 0.0), (False, True, 0.5), (True, True, 0.0)],
)
def test_truth_table_of_one_step(terminated: bool, truncated: bool, discount: float) -> None:
    buffer = make_buffer(8)
    fill(buffer, [[3]], [[terminated]], [[truncated]])
    assert targets(buffer) == {0: (3, 0.5, discount)}


@pytest.mark.parametrize(
    ("terminated", "truncated", "first"),
    [
        # Rewards 1, 2, 4, 8, ..., gamma .5: three steps sum to 1 + 1 + 1; the flags stand at the second step.
        (False, False, (3, 2.5, 0.125)),
        (True, False, (2, 1.5, 0)),
        (False, True, (2, 1.5, 0.25)),
        (True, True, (2, 1.5, 0)),
    ],
)
def test_truth_table_of_three_steps(terminated: bool, truncated: bool, first: tuple[float, float, float]) -> None:
    buffer = make_buffer(8, n_step=3)
    flags = np.zeros((2, 5, 1), bool)
    flags[:, 1] = [[terminated], [truncated]]
    fill(buffer, 2.0 ** np.arange(5)[:, None], *flags)
    found = targets(buffer)
    assert found[0] == first
    assert found[1] == ((2, 1.5, first[2] and 0.5) if terminated or truncated else (6, 3.5, 0.125))
    assert found[2] == (12, 4.5, 0.125)
    assert found[3] == (16, 4.5, 0.25)  # cut at the newest step: two rewards, and the value after them
    assert found[4] == (16, 4.5, 0.5)


def slow_targets(
    history: list[tuple[float, bool, bool]], first: int, held_from: int, envs: int, n_step: int, gamma: float
) -> tuple[float, float, float]:
    """Returns a target by its definition, from the complete history of transitions by number."""
    assert first >= held_from
    total, last = 0.0, first
    for k in range(n_step):
        last = first + k * envs
        total += gamma**k * history[last][0]
        if history[last][1] or history[last][2] or last + envs >= len(history):
            break
    steps = (last - first) // envs + 1
    return total, last + 0.5, 0.0 if history[last][1] else gamma**steps


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_target_is_that_of_the_slow_reference(data: st.DataObject) -> None:
    envs, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    n_step, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 15))
    transition = st.tuples(st.integers(-4, 4).map(float), st.booleans(), st.booleans())
    history = data.draw(st.lists(transition, min_size=steps * envs, max_size=steps * envs))
    buffer = make_buffer(rows * envs, envs, n_step, gamma=0.5)
    table = np.array(history).reshape(steps, envs, 3)
    fill(buffer, table[:, :, 0], table[:, :, 1].astype(bool), table[:, :, 2].astype(bool))
    held_from = max(0, steps - rows) * envs
    assert (buffer.size, buffer.total, buffer.oldest) == (min(rows, steps) * envs, steps * envs, held_from)
    expected = {i: slow_targets(history, i, held_from, envs, n_step, 0.5) for i in range(held_from, steps * envs)}
    assert targets(buffer) == expected  # small numbers times powers of two: exact in float32


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_observations_between_the_steps_are_those_that_the_later_steps_acted_on(data: st.DataObject) -> None:
    envs, n_step = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    rows, steps = data.draw(st.integers(n_step, 6)), data.draw(st.integers(1, 15))
    flags = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=steps * envs, max_size=steps * envs)
    history = [(0.0, terminated, truncated) for terminated, truncated in data.draw(flags)]
    form = (rows * envs, envs, (1,), F4, (), np.dtype(np.int64), n_step, 0.5)
    buffer = ReplayBuffer(*form, returns_middle=True)
    table = np.array(history).reshape(steps, envs, 3)
    fill(buffer, table[:, :, 0], table[:, :, 1].astype(bool), table[:, :, 2].astype(bool))
    batch = buffer.sample(40, np.random.default_rng(0))
    assert batch.middle_obs is not None
    assert batch.middle_discounts is not None
    assert batch.middle_obs.shape == (n_step - 1, 40, 1)
    for b, first in enumerate(batch.obs[:, 0].astype(int)):
        goes_on, last = True, int(first)
        for k in range(1, n_step):
            goes_on = goes_on and not (history[last][1] or history[last][2]) and last + envs < len(history)
            last += envs if goes_on else 0
            assert batch.middle_discounts[k - 1, b] == (0.5**k if goes_on else 0.0)
            assert batch.middle_obs[k - 1, b, 0] == last


def test_only_a_buffer_that_is_told_to_returns_observations_between_steps() -> None:
    buffers = (make_buffer(4, n_step=3), ReplayBuffer(4, 1, (1,), F4, (), np.dtype(np.int64), returns_middle=True))
    for buffer in buffers:
        fill(buffer, np.ones((4, 1)), np.zeros((4, 1), bool), np.zeros((4, 1), bool))
        batch = buffer.sample(8, np.random.default_rng(0))
        assert (batch.middle_obs, batch.middle_discounts) == (None, None)


def test_the_ring_forgets_the_oldest_step_first() -> None:
    buffer = make_buffer(6, envs=2)
    for steps, held in [(1, [0, 1]), (2, [0, 1, 2, 3, 4, 5]), (1, [2, 3, 4, 5, 6, 7]), (3, [8, 9, 10, 11, 12, 13])]:
        fill(buffer, np.zeros((steps, 2)))
        assert sorted(targets(buffer)) == held
    assert buffer.actions.tolist() == [[12, 13], [8, 9], [10, 11]]


def test_the_final_observation_is_what_was_handed_over_and_not_the_next_episodes_first() -> None:
    buffer = make_buffer(4)
    buffer.add(
        np.array([[1.0]]), np.array([0]), np.array([1.0]), np.array([[9.0]]), np.array([False]), np.array([True])
    )
    buffer.add(
        np.array([[5.0]]), np.array([0]), np.array([1.0]), np.array([[6.0]]), np.array([False]), np.array([False])
    )
    assert (buffer.obs[:2, 0, 0].tolist(), buffer.next_obs[:2, 0, 0].tolist()) == ([1, 5], [9, 6])


@pytest.mark.parametrize(("shape", "dtype"), [((1, 4, 4), np.dtype(np.uint8)), ((3,), F4), ((), MIXED)])
def test_dtypes_are_kept_in_the_ring_and_in_batches(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    buffer = ReplayBuffer(4, 2, shape, dtype, (2,), F4)
    obs = np.zeros((2, *shape), dtype)
    obs.view(np.uint8).reshape(-1)[:] = np.arange(obs.nbytes) % 100
    buffer.add(obs, np.ones((2, 2)), np.ones(2), obs[::-1], np.zeros(2, bool), np.zeros(2, bool))
    batch = buffer.sample(64, np.random.default_rng(1))
    assert buffer.obs.dtype == batch.obs.dtype == batch.next_obs.dtype == dtype
    assert {row.tobytes() for row in batch.obs} == {obs[0].tobytes(), obs[1].tobytes()}
    for before, after in zip(batch.obs, batch.next_obs, strict=True):
        assert (before.tobytes() == obs[0].tobytes()) == (after.tobytes() == obs[1].tobytes())
    assert buffer.nbytes == 4 * (2 * obs[0].nbytes + 8 + 4 + 2)


def test_copies_are_taken() -> None:
    """An environment may hand over the same array each time, and a sample may be written to."""
    buffer = make_buffer(4)
    shared, flag = np.zeros((1, 1), np.float32), np.zeros(1, bool)
    for i in range(4):
        shared[0, 0] = i
        buffer.add(shared, np.array([i]), shared[0], shared, flag, flag)
    assert (
        buffer.obs[:, 0, 0].tolist()
        == buffer.next_obs[:, 0, 0].tolist()
        == buffer.rewards[:, 0].tolist()
        == [0, 1, 2, 3]
    )
    batch = buffer.sample(16, np.random.default_rng(0))
    batch.obs[:] = batch.rewards[:, None] = -1
    assert buffer.obs.min() == buffer.rewards.min() == 0


def test_batches_reuse_their_memory_and_come_in_any_size() -> None:
    buffer = make_buffer(8)
    fill(buffer, np.zeros((8, 1)))
    rng = np.random.default_rng(0)
    first, second = buffer.sample(4, rng), buffer.sample(4, rng)
    assert first.obs is second.obs
    assert (len(first), len(buffer.sample(7, rng)), len(buffer.sample(100, rng))) == (4, 7, 100)


def test_sampling_is_uniform_with_replacement() -> None:
    buffer = make_buffer(10, envs=2)
    fill(buffer, np.zeros((7, 2)))  # wrapped: transitions 4 to 13
    rng, counts = np.random.default_rng(3), np.zeros(14)
    for _ in range(100):
        np.add.at(counts, buffer.sample(200, rng).actions, 1)
    assert counts[:4].sum() == 0
    # Chi square of 9 degrees of freedom: 27.9 is passed once in a thousand.
    assert ((counts[4:] - 2000) ** 2 / 2000).sum() < 27.9


def test_samples_depend_on_the_generator_alone_and_continue_from_its_restored_state() -> None:
    buffer = make_buffer(50)
    fill(buffer, np.zeros((80, 1)))
    rng = generator(7, "replay")
    buffer.sample(13, rng)
    restored = restore_generator(generator_state(rng))
    np.random.default_rng(0).random(5)
    for _ in range(5):
        assert buffer.sample(9, rng).actions.tolist() == buffer.sample(9, restored).actions.tolist()
    assert rng.bit_generator.state == restored.bit_generator.state


def test_a_capacity_of_zero_or_of_incomplete_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="high <= 0"):
        make_buffer(4).sample(1, np.random.default_rng(0))
    for capacity in (0, 2, 7):
        with pytest.raises(ValueError, match=f"a buffer of {capacity} transitions can't be filled in whole steps of 3"):
            make_buffer(capacity, envs=3)


def test_rows_are_complete_and_do_not_cross_the_end_of_the_ring() -> None:
    buffer = make_buffer(6, envs=2)
    fill(buffer, np.arange(10.0).reshape(5, 2))  # rows: steps 3, 4, 2
    copy = buffer.copy_rows(6, 4)
    assert copy["rewards"].tolist() == [[6, 7], [8, 9]]
    assert buffer.copy_rows(4, 2)["actions"].tolist() == [[4, 5]]
    assert not any(np.shares_memory(array, getattr(buffer, name)) for name, array in copy.items())
    for first, count in itertools.product((4, 5), (3, 4)):
        with pytest.raises(ValueError, match="not complete rows, or extend past the end of the ring"):
            buffer.rows(first, count)


def collected(env_id: str, num_envs: int, draw: Any) -> tuple[ReplayBuffer, Any]:
    """25 steps of an environment as a trainer stores them, and copies of the actions."""
    envs = TrainingEnvs(
        PPOConfig(env_id=env_id, num_envs=num_envs, total_timesteps=2_000, normalization={"reward": False}), gamma=None
    )
    encoder, codec = envs.encoder, envs.codec
    buffer = ReplayBuffer(25 * num_envs, num_envs, encoder.shape, encoder.dtype, codec.shape, codec.dtype)
    envs.start()
    given = []
    for _ in range(25):
        observation, actions = envs.observation, draw((num_envs, *codec.shape)).astype(codec.dtype)
        given.append(actions.copy())
        step = envs.step(actions)
        buffer.add(observation, actions, step.reward, step.next_observation, step.terminated, step.truncated)
    envs.close()
    return buffer, given


@pytest.mark.parametrize("num_envs", [1, 4])
def test_transitions_of_an_env_that_reuses_its_array(num_envs: int) -> None:
    buffer, _ = collected("case_envs:SharedArray-v0", num_envs, np.zeros)
    assert (buffer.next_obs - buffer.obs == 1).all()
    assert buffer.terminated.sum() == 2 * num_envs  # at the ends of episodes as well


@pytest.mark.parametrize("num_envs", [1, 4])
def test_actions_of_an_env_that_changes_them(num_envs: int) -> None:
    rng = np.random.default_rng(0)
    buffer, given = collected("case_envs:MutatesAction-v0", num_envs, lambda shape: rng.uniform(-1, 1, shape))
    np.testing.assert_array_equal(buffer.actions, given)
    assert np.abs(buffer.actions).max() <= 1
    np.testing.assert_allclose(buffer.rewards, -10 * np.abs(buffer.actions).sum(axis=-1), rtol=1e-6)
