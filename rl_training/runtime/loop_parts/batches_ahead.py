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
    count: int,
) -> Generator[ReplayBatch]:
    """Yields `count` batches of `size` transitions, drawn in groups of `algorithm.batches_ahead`.

    If a second thread is free, it looks ahead in a group while the caller learns from the group before. The transitions
    are those of single draws; if the caller closes the generator early, it is as if no further batch had been drawn.
    Nothing may be added to the buffer, and no target network updated, until the generator is closed.
    """
    rng = algorithm.replay_rng
    if count == 1 or algorithm.batches_ahead == (1, 1):
        for _ in range(count):
            yield normalize(buffer.sample(size, rng))
        return

    def draw(batches: int) -> Callable[[], ReplayBatch]:
        return partial(algorithm.look_ahead, normalize(buffer.sample(batches * size, rng)).copy())

    before, yielded = rng.bit_generator.state, 0
    groups = split_block(count, *algorithm.batches_ahead, in_two_threads=THREADS.is_free)
    group = Ahead(draw(groups[0]))
    try:
        for batches, following in zip_longest(groups, groups[1:]):
            drawn = group.result()
            if following is not None:
                group = THREADS.begin(draw(following))
            for i in range(batches):
                yielded += 1
                yield drawn.select(slice(i * size, (i + 1) * size))
    finally:
        group.settle()
        if yielded < count:
            rng.bit_generator.state = before
            buffer.skip(yielded * size, rng)


def split_block(count: int, fewest: int, most: int, in_two_threads: bool) -> list[int]:
    """Returns the sizes of the groups of a block of `count` batches.

    In two threads the first group is as small as possible, because nothing can be learned meanwhile, and the next ones
    grow, so that each is ready before the updates with the one before it have ended.
    """
    groups, size = [], fewest if in_two_threads else most
    while count > 0:
        groups.append(min(size, count))
        count -= size
        size = min(GROWTH * size, most)
    return groups
