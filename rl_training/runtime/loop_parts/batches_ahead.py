"""Draws the batches of a block of updates in groups, so that an algorithm can compute something for a group at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import zip_longest

from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.networks.threads import THREADS, Ahead

GROWTH = 4
"""How many times as many batches a group may have as the group before."""


def draw_ahead(
    buffer: ReplayBuffer,
    algorithm: OffPolicyAlgorithm,
    normalize: Callable[[ReplayBatch], ReplayBatch],
    size: int,
    updates: range,
) -> Generator[ReplayBatch]:
    """Yields a batch of `size` transitions for each of these updates, drawn in groups of `algorithm.batches_ahead`.

    If a second thread is free, it looks ahead in a group while the caller learns from the group before. The transitions
    are those of single draws; if the caller closes the generator early, it is as if no further batch had been drawn.
    Nothing may be added to the buffer, and no target network updated, until the generator is closed.
    """
    rng = algorithm.replay_rng
    if algorithm.batches_ahead == (1, 1):
        for _ in updates:
            yield normalize(buffer.sample(size, rng))
        return

    def draw(group: range) -> Callable[[], ReplayBatch]:
        drawn = normalize(buffer.sample(len(group) * size, rng)).copy()
        return partial(algorithm.look_ahead, drawn, group.start)

    before, yielded = rng.bit_generator.state, 0
    groups = split_block(updates, *algorithm.batches_ahead, in_two_threads=THREADS.is_free)
    ahead = Ahead(draw(groups[0]))
    try:
        for group, following in zip_longest(groups, groups[1:]):
            drawn = ahead.result()
            if following is not None:
                ahead = THREADS.begin(draw(following))
            for i in range(len(group)):
                yielded += 1
                yield drawn.select(slice(i * size, (i + 1) * size))
    finally:
        ahead.settle()
        if yielded < len(updates):
            rng.bit_generator.state = before
            buffer.skip(yielded * size, rng)


def split_block(updates: range, fewest: int, most: int, in_two_threads: bool) -> list[range]:
    """Returns the groups of a block of updates.

    In two threads the first group is as small as possible, because nothing can be learned meanwhile, and the next ones
    grow, so that each is ready before the updates with the one before it have ended.
    """
    groups, size = [], fewest if in_two_threads else most
    while updates:
        groups.append(updates[:size])
        updates = updates[size:]
        size = min(GROWTH * size, most)
    return groups
