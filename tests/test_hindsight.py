"""Hindsight: which goals a transition can get, what it then is, and that the draws can be repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.hindsight import END_BYTES, EpisodeEnds, HindsightReplayBuffer
from rl_training.data.priorities import Priorities
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.envs.goals.goal_columns import find_goal_columns
from rl_training.envs.spaces import ObservationEncoder

NUMBER = spaces.Box(-np.inf, np.inf, (1,))
SPACE = spaces.Dict({"achieved_goal": NUMBER, "desired_goal": NUMBER, "observation": NUMBER})
PICTURED = spaces.Dict({**SPACE.spaces, "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8)})
NO_GOAL = -100.0


def reward_of(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distance as a cost; an episode ends at its goal."""
    distance = np.abs(achieved - desired)[:, 0]
    return -distance, distance == 0


def make(
    rows: int, envs: int = 1, fraction: float = 1.0, space: spaces.Dict = SPACE, compute: Any = reward_of
) -> HindsightReplayBuffer:
    encoder = ObservationEncoder(space)
    own = (find_goal_columns(encoder), compute, fraction)
    return HindsightReplayBuffer(rows * envs, envs, encoder, (), np.dtype(np.int64), 0.5, *own)


def fill(buffer: ReplayBuffer, terminated: Any, truncated: Any = None) -> None:
    """Adds [T, N] steps. Transition i is action i, leads from place i to place i + 0.5, and never reaches its goal."""
    terminated = np.asarray(terminated, bool)
    truncated = np.zeros_like(terminated) if truncated is None else np.asarray(truncated, bool)
    for ends, cuts in zip(terminated, truncated, strict=True):
        number = buffer.total + np.arange(buffer.num_envs, dtype=np.float32)
        before, after = (np.stack([p, np.full_like(p, NO_GOAL), p], 1) for p in (number, number + np.float32(0.5)))
        reward = np.full(buffer.num_envs, -7.0)
        buffer.add(before, number.astype(np.int64), reward, after, ends, cuts)


def goals_of(batch: ReplayBatch) -> dict[int, set[float]]:
    """The goals that each transition was drawn with."""
    found: dict[int, set[float]] = {}
    for number, goal in zip(batch.actions, batch.next_obs[:, 1], strict=True):
        found.setdefault(int(number), set()).add(float(goal))
    return found


def slow_goals(done: np.ndarray, rows: int) -> dict[int, set[float]]:
    """What each transition in the ring may get, by the definition: its place after each later step of its episode."""
    steps, envs = done.shape
    expected = {}
    for first in range(max(0, steps - rows), steps):
        for env in range(envs):
            last = next((t for t in range(first, steps) if done[t, env]), steps - 1)
            expected[first * envs + env] = {t * envs + env + 0.5 for t in range(first, last + 1)}
    return expected


flags = st.sampled_from([(False, False)] * 4 + [(True, False), (False, True), (True, True)])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_goal_is_achieved_later_in_the_same_episode_and_still_in_the_ring(data: st.DataObject) -> None:
    envs, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    steps = data.draw(st.integers(1, 20))
    table = np.array(data.draw(st.lists(flags, min_size=steps * envs, max_size=steps * envs)), bool)
    terminated, truncated = np.moveaxis(table.reshape(steps, envs, 2), 2, 0)
    buffer = make(rows, envs)
    fill(buffer, terminated, truncated)
    assert goals_of(buffer.sample(1_500, np.random.default_rng(0))) == slow_goals(terminated | truncated, rows)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_ends_of_episodes_follow_from_restored_flags(data: st.DataObject) -> None:
    envs, rows, steps = (data.draw(st.integers(1, most)) for most in (3, 7, 25))
    done = np.array(data.draw(st.lists(st.booleans(), min_size=steps * envs, max_size=steps * envs)))
    done = done.reshape(steps, envs)
    lived, restored = EpisodeEnds(rows, envs), EpisodeEnds(rows, envs)
    for step in range(steps):
        lived.add(step, done[step : step + 1])
    step = data.draw(st.integers(0, max(0, steps - rows)))  # a checkpoint may hold some that are overwritten
    while step < steps:
        count = data.draw(st.integers(1, min(steps - step, rows - step % rows)))
        restored.add(step, done[step : step + count])
        step += count
    places = np.arange(min(rows, steps) * envs)
    for luck in (0.0, 0.4, np.nextafter(1.0, 0.0)):
        drawn = [ends.draw_later(places, np.full(len(places), luck)).tolist() for ends in (lived, restored)]
        assert drawn[0] == drawn[1]


def test_an_episode_that_was_cut_after_its_steps_were_stored_ends_there() -> None:
    buffer = make(8, envs=2)
    fill(buffer, np.zeros((2, 2)))
    buffer.cut_newest([1])
    fill(buffer, np.zeros((1, 2)))
    found = goals_of(buffer.sample(500, np.random.default_rng(0)))
    assert found == {0: {0.5, 2.5, 4.5}, 1: {1.5, 3.5}, 2: {2.5, 4.5}, 3: {3.5}, 4: {4.5}, 5: {5.5}}
    assert buffer.truncated[1].tolist() == [False, True]


def test_an_episode_that_had_ended_already_is_not_cut_again() -> None:
    buffer = make(8)
    buffer.cut_newest([0])
    fill(buffer, [[False], [True]])
    buffer.cut_newest([0])
    fill(buffer, [[False], [False]])
    found = goals_of(buffer.sample(500, np.random.default_rng(0)))
    assert found == {0: {0.5, 1.5}, 1: {1.5}, 2: {2.5, 3.5}, 3: {3.5}}


def test_each_later_step_is_equally_likely() -> None:
    buffer = make(5)
    fill(buffer, np.zeros((5, 1)))
    batch = buffer.sample(20_000, np.random.default_rng(1))
    counts = Counter(batch.next_obs[batch.actions == 1, 1].tolist())
    expected = (batch.actions == 1).sum() / 4
    # Chi square of 3 degrees of freedom: 16.3 is passed once in a thousand.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 16.3
    assert sorted(counts) == [1.5, 2.5, 3.5, 4.5]


def test_a_replaced_goal_changes_both_observations_the_reward_and_the_end_and_nothing_else() -> None:
    """From place 0 to 0.5, goals 0.5 and 1.5: rewards 0 and -1, of which the first ends the episode."""
    buffer = make(4)
    fill(buffer, [[False], [False]])
    batch = buffer.sample(200, np.random.default_rng(0))
    rows = np.column_stack([batch.obs, batch.next_obs, batch.rewards, batch.discounts])[batch.actions == 0]
    assert sorted({tuple(row.tolist()) for row in rows}) == [
        (0.0, 0.5, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0),
        (0.0, 1.5, 0.0, 0.5, 1.5, 0.5, -1.0, 0.5),
    ]
    assert set(buffer.obs[:2, 0, 1].tolist()) == set(buffer.next_obs[:2, 0, 1].tolist()) == {NO_GOAL}
    assert buffer.rewards[:2, 0].tolist() == [-7.0, -7.0]


def test_a_transition_that_ended_its_episode_goes_on_for_another_goal() -> None:
    """The end belongs to the goal that was reached, not to one that was not."""
    buffer = make(2, compute=lambda achieved, desired: (np.full(len(achieved), -3.0), np.zeros(len(achieved), bool)))
    fill(buffer, [[True]])
    batch = buffer.sample(8, np.random.default_rng(0))
    assert batch.discounts.tolist() == [0.5] * 8
    assert batch.rewards.tolist() == [-3.0] * 8


def test_the_other_transitions_are_as_they_were() -> None:
    buffer, fraction = make(8, fraction=0.8), 0.8
    fill(buffer, [[False]] * 4 + [[True]] + [[False]] * 2)
    batch = buffer.sample(5_000, np.random.default_rng(0))
    kept = batch.next_obs[:, 1] == NO_GOAL
    # A standard deviation is sqrt(0.8 * 0.2 / 5,000) = 0.0057.
    assert 1 - kept.mean() == pytest.approx(fraction, abs=0.018)
    assert set(batch.rewards[kept].tolist()) == {-7.0}
    assert set(batch.obs[kept, 1].tolist()) == {NO_GOAL}
    assert (batch.discounts[kept] == np.where(batch.actions[kept] == 4, 0.0, 0.5)).all()


def test_only_transitions_with_another_goal_are_asked_about() -> None:
    asked: list[int] = []

    def compute(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(achieved))
        return reward_of(achieved, desired)

    buffer = make(8, fraction=0.5, compute=compute)
    fill(buffer, [[False]] * 8)
    batch = buffer.sample(400, np.random.default_rng(0))
    assert asked == [int((batch.next_obs[:, 1] != NO_GOAL).sum())]
    never = make(8, fraction=1e-12, compute=compute)
    fill(never, [[False]])
    never.sample(50, np.random.default_rng(0))
    assert len(asked) == 1


@pytest.mark.parametrize("prioritized", [False, True])
def test_skipped_draws_advance_the_generator_as_drawn_ones(prioritized: bool) -> None:
    buffer = make(8)
    if prioritized:
        buffer.priorities = Priorities(8, alpha=0.6, epsilon=1e-6)
    fill(buffer, [[False]] * 8)
    drawing, skipping = np.random.default_rng(3), np.random.default_rng(3)
    buffer.sample(37, drawing)
    buffer.skip(37, skipping)
    assert drawing.bit_generator.state == skipping.bit_generator.state


def test_batches_that_are_drawn_together_equal_single_ones() -> None:
    buffer = make(8, envs=3, fraction=0.6)
    fill(buffer, np.random.default_rng(0).random((20, 3)) < 0.2)
    one, other = np.random.default_rng(4), np.random.default_rng(4)
    together = buffer.sample(50, one).copy()
    for i in range(5):
        single = buffer.sample(10, other)
        for name, array in vars(together.select(slice(10 * i, 10 * i + 10))).items():
            if array is not None:
                np.testing.assert_array_equal(array, getattr(single, name))
    assert one.bit_generator.state == other.bit_generator.state


def test_priorities_decide_the_transitions_and_not_their_goals() -> None:
    buffer = make(4)
    buffer.priorities = Priorities(4, alpha=1.0, epsilon=1e-9)
    fill(buffer, [[False]] * 4)
    buffer.priorities.update(np.arange(4), np.array([0.0, 0.0, 1.0, 0.0]))
    batch = buffer.sample(400, np.random.default_rng(0))
    assert set(batch.places.tolist()) == {2}  # type: ignore[union-attr]
    assert goals_of(batch) == {2: {2.5, 3.5}}


def test_goals_beside_images_are_replaced_too() -> None:
    encoder = ObservationEncoder(PICTURED)
    goals = find_goal_columns(encoder)
    buffer = make(4, space=PICTURED)
    for place in (1.0, 2.0):
        images = np.full((1, 4, 4, 1), int(place), np.uint8)
        parts = {"achieved_goal": [[place]], "desired_goal": [[NO_GOAL]], "observation": [[place]], "camera": images}
        row = encoder.encode(parts)
        buffer.add(row, np.array([0]), np.array([-7.0]), row, np.array([False]), np.array([False]))
    batch = buffer.sample(100, np.random.default_rng(0))
    for observations in (batch.obs, batch.next_obs):
        achieved, desired = (observations["vector"][:, c] for c in (goals.achieved, goals.desired))
        assert (observations["image_0"][:, 0, 0, 0] == achieved[:, 0]).all()
        assert set(map(tuple, np.hstack([achieved, desired]).tolist())) == {(1, 1), (1, 2), (2, 2)}


def test_the_memory_for_the_ends_of_episodes() -> None:
    assert EpisodeEnds(1_000, 3)._ends_RN.nbytes == 3_000 * END_BYTES
