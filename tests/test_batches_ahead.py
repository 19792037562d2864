"""Batches that are drawn in groups, by one thread or by two, are those of single draws."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from rl_training.algorithms.dqn import DQN
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.networks.threads import THREADS
from rl_training.runtime.loop_parts.batches_ahead import draw_ahead, split_block
from tests.off_policy_parts import make_dqn

SIZE = 64
UPDATES = range(6, 46)
"""Numbers of updates that begin in the middle of a product's rows."""


@contextmanager
def looking_ahead(threads: int) -> Iterator[tuple[DQN, ReplayBuffer, list[int]]]:
    """An agent, a full buffer, and the threads that looked ahead, one for each group."""
    dqn, seen, rng = make_dqn(batch_size=SIZE, gradient_steps=40), list[int](), np.random.default_rng(0)
    buffer = ReplayBuffer(500, 1, (3,), np.dtype(np.float32), (), np.dtype(np.int64))
    for _ in range(500):
        obs, next_obs = rng.standard_normal((2, 1, 3)).astype(np.float32)
        buffer.add(
            obs, rng.integers(3, size=1), rng.standard_normal(1), next_obs, rng.random(1) < 0.1, np.zeros(1, bool)
        )
    look_ahead = dqn.look_ahead

    def note(batches: ReplayBatch, first: int) -> ReplayBatch:
        seen.append(threading.get_ident())
        return look_ahead(batches, first)

    dqn.look_ahead = note  # type: ignore[method-assign]
    with THREADS.using(threads):
        yield dqn, buffer, seen


def scale(batch: ReplayBatch) -> ReplayBatch:
    """Stands for the normalisation of a batch."""
    return ReplayBatch(2 * batch.obs, batch.actions, batch.rewards, 2 * batch.next_obs, batch.discounts)


def states(rng: np.random.Generator) -> Any:
    return rng.bit_generator.state


@pytest.mark.parametrize(
    ("count", "most", "in_two_threads", "expected"),
    [
        (3, 16, False, [3]),
        (3, 16, True, [3]),
        (4, 16, True, [4]),
        (5, 16, True, [4, 1]),
        (16, 16, False, [16]),
        (16, 16, True, [4, 12]),
        (40, 16, False, [16, 16, 8]),
        (40, 16, True, [4, 16, 16, 4]),
        (128, 64, True, [4, 16, 64, 44]),
        (200, 50, True, [4, 16, 50, 50, 50, 30]),
    ],
)
def test_a_block_is_split_into_large_groups_or_into_growing_ones_after_a_small_one(
    count: int, most: int, in_two_threads: bool, expected: list[int]
) -> None:
    groups = split_block(range(7, 7 + count), 4, most, in_two_threads)
    assert [len(group) for group in groups] == expected
    assert [update for group in groups for update in group] == list(range(7, 7 + count))


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_groups_are_those_of_single_draws(threads: int) -> None:
    with looking_ahead(threads) as (dqn, buffer, seen):
        alone, rng = make_dqn(batch_size=SIZE, gradient_steps=40), np.random.default_rng()
        rng.bit_generator.state = states(dqn.replay_rng)
        with closing(draw_ahead(buffer, dqn, scale, SIZE, UPDATES)) as batches:
            kept = list(batches)  # no draw overwrites an earlier one
        assert len(kept) == 40
        for number, batch in zip(UPDATES, kept, strict=True):
            expected = scale(buffer.sample(SIZE, rng))
            for name in ("obs", "actions", "rewards", "next_obs", "discounts"):
                assert np.array_equal(getattr(batch, name), getattr(expected, name)), name
            targets = alone.look_ahead(expected, number).targets
            assert batch.targets is not None
            assert targets is not None
            assert np.array_equal(batch.targets, targets)
        assert states(dqn.replay_rng) == states(rng)
        own = threading.get_ident()
        if threads == 1:
            assert seen == [own] * 3
        else:
            assert seen[0] == own
            assert len(set(seen[1:])) == 1
            assert own not in seen[1:]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("used", [1, 4, 5, 21, 40])
def test_what_was_drawn_ahead_but_not_used_counts_as_not_drawn(threads: int, used: int) -> None:
    with looking_ahead(threads) as (dqn, buffer, _):
        rng = np.random.default_rng()
        rng.bit_generator.state = states(dqn.replay_rng)
        with closing(draw_ahead(buffer, dqn, scale, SIZE, UPDATES)) as batches:
            for _ in range(used):
                next(batches)
        for _ in range(used):
            buffer.sample(SIZE, rng)
        assert states(dqn.replay_rng) == states(rng)
        assert THREADS.is_free == (threads == 2)


def test_an_error_in_the_second_thread_is_raised_where_the_group_is_wanted() -> None:
    with looking_ahead(2) as (dqn, buffer, seen):
        look_ahead = dqn.look_ahead

        def fail_later(batches: ReplayBatch, first: int) -> ReplayBatch:
            if len(seen) == 2:
                raise ValueError("the third group")
            return look_ahead(batches, first)

        dqn.look_ahead = fail_later  # type: ignore[method-assign]
        with closing(draw_ahead(buffer, dqn, scale, SIZE, UPDATES)) as batches:
            for _ in range(4 + 16):
                next(batches)
            with pytest.raises(ValueError, match="the third group"):
                next(batches)
        assert THREADS.is_free
