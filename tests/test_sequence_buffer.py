"""A rollout in sequences: which transitions, lengths and memories its minibatches have."""

import numpy as np
import pytest

from rl_training.data.sequence_buffer import SequenceBuffer


def make_buffer(steps: int | None = None) -> SequenceBuffer:
    """Four steps of two environments in sequences of two; the observation is the index of the transition.

    Environment 0 ends an episode with step 0, and environment 1 with step 1. A memory is 100 plus that index.
    """
    buffer = SequenceBuffer(
        4, 2, (1,), np.dtype(np.float32), (), np.dtype(np.int64), sequence_length=2, memory_shape=(1,)
    )
    buffer.reset(steps)
    while not buffer.full:
        t = buffer.position
        index = np.float32([[2 * t], [2 * t + 1]])
        buffer.add_step(index, np.zeros(2), np.zeros(2))
        buffer.end_episodes(np.array([t == 0, t == 1]), np.zeros(2, bool), None)
        buffer.store_memories(100 + index)
    return buffer


def test_memories_are_kept_where_sequences_begin() -> None:
    assert make_buffer().memories[:, :, 0].tolist() == [[100, 101], [104, 105]]


def test_an_order_holds_each_sequence_in_one_piece() -> None:
    buffer, seen = make_buffer(), set()
    for seed in range(20):
        order = buffer.draw_order(np.random.default_rng(seed)).reshape(4, 2).tolist()
        assert sorted(order) == [[0, 2], [1, 3], [4, 6], [5, 7]]
        seen.add(str(order))
    assert len(seen) > 10


def test_a_sequence_in_which_an_episode_begins_is_divided_there() -> None:
    order = np.array([4, 6, 0, 2, 5, 7, 1, 3])
    first, second = make_buffer().iter_minibatches(4, order)
    assert first.obs[:, 0].tolist() == [4, 6, 0, 2]
    assert first.lengths.tolist() == [2, 1, 1]  # environment 0 begins an episode with step 1, transition 2
    assert first.memories[:, 0].tolist() == [104, 100, 0]
    assert second.obs[:, 0].tolist() == [5, 7, 1, 3]
    assert second.lengths.tolist() == [2, 2]  # environment 1 begins one with step 2, where a sequence begins anyway
    assert second.memories[:, 0].tolist() == [105, 101]


def test_the_rest_of_an_order_gives_the_rest_of_the_minibatches() -> None:
    order = np.array([4, 6, 0, 2, 5, 7, 1, 3])
    _, second = make_buffer().iter_minibatches(4, order)
    (rest,) = make_buffer().iter_minibatches(4, order[4:])
    assert [(name, value.tolist()) for name, value in vars(rest).items()] == [
        (name, value.tolist()) for name, value in vars(second).items()
    ]
    assert list(make_buffer().iter_minibatches(4, order[8:])) == []


def test_a_shortened_rollout_has_short_sequences_at_its_end() -> None:
    buffer = make_buffer(steps=3)
    order = np.array([4, 1, 3, 5, 0, 2])
    assert sorted(buffer.draw_order(np.random.default_rng(0)).tolist()) == list(range(6))
    first, second = buffer.iter_minibatches(4, order)
    assert (first.obs[:, 0].tolist(), first.lengths.tolist()) == ([4, 1, 3], [1, 2])
    assert (second.obs[:, 0].tolist(), second.lengths.tolist()) == ([5, 0, 2], [1, 1, 1])


@pytest.mark.parametrize(("steps", "sequences"), [(4, 2), (3, 2), (2, 1)])
def test_the_state_holds_the_memories_of_the_stored_steps_alone(steps: int, sequences: int) -> None:
    state = make_buffer(steps).state_dict()
    assert state["memories"].shape == (sequences, 2, 1)
    again = make_buffer()
    again.load_state_dict(state)
    np.testing.assert_array_equal(again.memories[:sequences], state["memories"])
    assert again.position == steps
