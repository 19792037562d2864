"""Priorities of replayed transitions: what is drawn, what they are, and that their sums depend on nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.priorities import PRIORITY_BYTES, Priorities
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.errors import CheckpointError
from tests.off_policy_parts import through_a_file

ACTION = (), np.dtype(np.int64)


def filled(priorities: list[int], capacity: int | None = None) -> Priorities:
    """Priorities that are these whole numbers: with an alpha of 1 and an epsilon of 1, errors less one."""
    made = Priorities(capacity or len(priorities), alpha=1.0, epsilon=1.0)
    made.add(0, len(priorities))
    made.update(np.arange(len(priorities)), np.array(priorities, float) - 1.0)
    return made


class Highest:
    """A generator that draws the largest number below 1."""

    def random(self, count: int) -> np.ndarray:
        return np.full(count, np.nextafter(1.0, 0.0))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=150), st.integers(1, 40), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_draws_are_those_of_one_sum_over_all(numbers: list[int], count: int, unused: int) -> None:
    """Sums of whole numbers are exact in any order, so both find the same places."""
    got = filled(numbers, len(numbers) + unused).draw(count, len(numbers), np.random.default_rng(1))
    sums = np.cumsum(numbers)
    points = (np.arange(count) + np.random.default_rng(1).random(count)) * (sums[-1] / count)
    assert got.tolist() == np.searchsorted(sums, points, side="right").tolist()


def test_transitions_are_drawn_in_proportion_to_their_priorities() -> None:
    """Of 1,000 draws, one from each equal part of the sum, a share of s has 1,000 s, to within two at its borders."""
    numbers = [1, 5, 2, 40, 2, 0, 25, 25]
    drawn = filled([n + 1 for n in numbers]).draw(1_000, 8, np.random.default_rng(0))
    expected = 1_000 * (np.array(numbers) + 1) / (sum(numbers) + 8)
    assert np.abs(np.bincount(drawn, minlength=8) - expected).max() < 2


@pytest.mark.parametrize("size", [1, 2, 3, 26, 27, 28, 90])
def test_a_sum_that_was_rounded_leads_to_no_place_without_a_transition(size: int) -> None:
    priorities = Priorities(100, alpha=0.5, epsilon=1e-6)
    priorities.add(0, size)
    priorities.update(np.arange(size), np.full(size, 0.1))
    drawn = priorities.draw(size, size, Highest())  # type: ignore[arg-type]
    assert drawn.max() == size - 1
    assert drawn.min() >= 0


def test_a_priority_by_hand() -> None:
    """(|error| + epsilon) ** alpha: (3.99 + 0.01) ** 0.5 = 2, for errors of both signs; at first, a new one has 1."""
    priorities = Priorities(8, alpha=0.5, epsilon=0.01)
    priorities.add(0, 3)
    assert priorities.read(np.arange(3)).tolist() == [1.0, 1.0, 1.0]
    priorities.update(np.array([2, 0]), np.array([-3.99, 0.0]))
    assert priorities.read(np.arange(3)).tolist() == pytest.approx([0.1, 1.0, 2.0])


def test_a_new_transition_has_the_largest_priority_so_far_even_if_that_one_is_gone() -> None:
    priorities = filled([3, 7, 2])
    priorities.update(np.array([1]), np.array([0.0]))
    priorities.add(0, 2)
    assert priorities.read(np.arange(3)).tolist() == [7.0, 7.0, 2.0]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_restored_sums_have_the_bits_of_those_that_were_updated_step_by_step(data: Any) -> None:
    capacity = data.draw(st.integers(1, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    lived = Priorities(capacity, alpha=0.6, epsilon=1e-6)
    for step in range(data.draw(st.integers(1, 30))):
        lived.add(step % capacity, 1)
        held = min(step + 1, capacity)
        lived.update(lived.draw(5, held, rng), rng.standard_normal(5).astype(np.float32) * 10)
    restored = Priorities(capacity, alpha=0.6, epsilon=1e-6)
    restored.load_state_dict(through_a_file(lived.state_dict(held)), held)
    assert [level.tobytes() for level in restored._levels] == [level.tobytes() for level in lived._levels]
    restored.add(0, 1)
    lived.add(0, 1)
    assert restored.read(np.arange(1)) == lived.read(np.arange(1))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"priorities": torch.ones(2, dtype=torch.float64)}, "priorities"),
        ({"priorities": torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)}, "expected positive numbers"),
        ({"priorities": torch.tensor([1.0, np.nan, 2.0], dtype=torch.float64)}, "priorities has a NaN or infinity"),
        ({"priorities": torch.ones(3)}, "priorities"),
        ({"largest": -1.0}, "expected positive numbers"),
        ({"largest": np.inf}, "expected positive numbers"),
        ({"largest": "1"}, "largest priority"),
    ],
)
def test_priorities_that_cannot_be_are_refused(changed: dict[str, Any], words: str) -> None:
    priorities = filled([1, 2, 3], capacity=8)
    with pytest.raises(CheckpointError, match=words):
        priorities.load_state_dict({**priorities.state_dict(3), **changed}, 3)


# In a buffer.


def live(buffer: ReplayBuffer, steps: int, shape: tuple[int, ...] = (1,)) -> None:
    """Adds steps of two environments, whose observations and rewards are the number of the step."""
    zero = np.zeros(2, bool)
    for step in range(steps):
        obs, following = (np.full((2, *shape), step + after, np.uint8) for after in (0, 1))
        buffer.add(obs, np.array([0, 1]), np.full(2, float(step)), following, zero, zero)


def test_a_buffer_draws_by_priority_across_the_end_of_its_ring() -> None:
    """Of 5 rows, steps 5 and 6 have overwritten 0 and 1; almost all of the sum is that of step 4, environment 1."""
    buffer = ReplayBuffer(10, 2, (1,), np.dtype(np.uint8), *ACTION, n_step=3, gamma=0.5)
    buffer.priorities = Priorities(10, alpha=1.0, epsilon=1e-9)
    live(buffer, 7)
    buffer.priorities.update(np.arange(10), np.where(np.arange(10) == 9, 1.0, 0.0))
    batch = buffer.sample(4, np.random.default_rng(0))
    assert batch.places is not None
    assert batch.places.tolist() == [9] * 4
    assert batch.priorities is not None
    assert batch.priorities.tolist() == pytest.approx([1.0] * 4)
    assert batch.obs.ravel().tolist() == [4] * 4
    assert batch.rewards.tolist() == [4 + 5 / 2 + 6 / 4] * 4
    assert batch.discounts.tolist() == [0.125] * 4
    assert batch.next_obs.ravel().tolist() == [7] * 4


def test_a_step_that_is_overwritten_loses_its_priority_and_a_cut_step_keeps_it() -> None:
    buffer = ReplayBuffer(4, 2, (1,), np.dtype(np.uint8), *ACTION)
    buffer.priorities = Priorities(4, alpha=1.0, epsilon=1.0)
    live(buffer, 2)
    buffer.priorities.update(np.arange(4), np.array([8.0, 3.0, 1.0, 0.0]))
    buffer.cut_newest([0])
    assert buffer.priorities.read(np.arange(4)).tolist() == [9.0, 4.0, 2.0, 1.0]
    live(buffer, 1)
    assert buffer.priorities.read(np.arange(4)).tolist() == [9.0, 9.0, 2.0, 1.0]


def test_frames_that_are_stored_once_are_drawn_by_priority_alike() -> None:
    shape = (2, 3, 3)
    whole = ReplayBuffer(8, 2, shape, np.dtype(np.uint8), *ACTION)
    frames = FrameReplayBuffer(8, 2, shape, 1, *ACTION)
    batches = []
    for buffer in (whole, frames):
        buffer.priorities = Priorities(8, alpha=0.7, epsilon=0.1)
        live(buffer, 6, shape)
        buffer.priorities.update(np.arange(8), np.arange(8.0))
        batches.append(buffer.sample(16, np.random.default_rng(3)))
    for name, array in vars(batches[0]).items():
        np.testing.assert_array_equal(array, getattr(batches[1], name), err_msg=name)


def test_skipped_draws_advance_the_generator_as_drawn_ones() -> None:
    buffer = ReplayBuffer(10, 2, (1,), np.dtype(np.uint8), *ACTION)
    buffer.priorities = Priorities(10, alpha=1.0, epsilon=1.0)
    live(buffer, 3)
    drawn, skipped = np.random.default_rng(0), np.random.default_rng(0)
    buffer.sample(7, drawn)
    buffer.skip(7, skipped)
    assert drawn.bit_generator.state == skipped.bit_generator.state


@pytest.mark.parametrize("capacity", [100_000, 103_824, 1_000_000, 1_000_001])
def test_large_rings_take_at_most_the_bytes_that_the_memory_check_counts(capacity: int) -> None:
    """103,824 and 1,000,001 transitions are one more than a tree of width 47 and of width 100 has leaves."""
    made = Priorities(capacity, 0.6, 1e-6)
    assert 8 * capacity < sum(level.nbytes for level in made._levels) < PRIORITY_BYTES * capacity
